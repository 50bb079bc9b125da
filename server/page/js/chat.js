/* chat.js - the conversation that is shown, the answers that are coming, and what is kept of them.
 * An answer goes on when another conversation is looked at; a reload ends it, and what had come is
 * kept. */

const SAVE_EVERY_MS = 1000;
const TYPED_MS = 400;
const ENDED_MS = 5000;
const CHECK_MS = 1000;
const PINNED_PX = 48;

const chat = {
  current: null,    /* the conversation that is shown; kept once it has a message */
  views: [],        /* of its messages */
  jobs: new Map(),  /* id of a conversation -> its answer that is coming */
  ended: new Map(),    /* id -> a conversation whose answer has ended just now */
  unsaved: new Map(),  /* id -> a conversation that could not be stored; the page alone has it */
  model: null,      /* {id, kv_policy, max_model_len} */
  leaving: false,   /* the page goes */
  pinned: true,     /* the newest line stays in sight */
  onchange: () => {},
  onkey: () => {},     /* a key is wanted */
  onrefused: () => {}, /* a field was refused */
  onlost: () => {},    /* the server was not there, or is another one */
  onsettings: () => {},  /* another tab has changed those of the conversation that is shown */
  ongone: () => {},    /* another tab has deleted it */
};

const emptyConversation = (settings) =>
  ({ revision: '', id: newId(), title: '', settings: structuredClone(settings || {}), messages: [] });
const isKept = (conversation) => conversation.messages.length > 0;

/* --- what is kept, and other tabs ------------------------------------------------------------- */

function keep(conversation, isNews) {
  if (!isKept(conversation)) return;
  const { id } = conversation;
  if (store.isStale(conversation)) giveWay(conversation);
  if (store.save(conversation, isNews)) chat.unsaved.delete(conversation.id);
  else chat.unsaved.set(conversation.id, conversation);
  showNotice();
  checkSoon();
  for (const other of [chat.current.id, ...chat.jobs.keys()]) if (other !== conversation.id) keepHere(other);
  if (conversation.id !== id) chat.onchange();
}

/* The messages of `part` are the first ones of `all`, whose last may have grown since. */
const isBeginning = (part, all) => part.length <= all.length && part.every(({ role, content }, i) =>
  role === all[i].role && (content === all[i].content
    || (role === 'assistant' && i === part.length - 1 && all[i].content.startsWith(content))));

/* Another tab has written the conversation since. If that has no messages but what is here its
 * settings are taken; else this one goes on under a name of its own, so that nothing is lost. */
function giveWay(conversation) {
  const stored = store.load(conversation.id);
  if (!stored) return;
  if (!isBeginning(stored.messages, conversation.messages)) rename(conversation);
  else if (typed !== conversation) takeSettings(conversation, stored.settings);
}

function takeSettings(conversation, settings) {
  if (JSON.stringify(settings) === JSON.stringify(conversation.settings)) return;
  conversation.settings = settings;
  if (conversation === chat.current) chat.onsettings();
}

function rename(conversation) {
  const job = chat.jobs.get(conversation.id);
  chat.jobs.delete(conversation.id);
  chat.unsaved.delete(conversation.id);
  Object.assign(conversation, { id: newId(), revision: '' });
  if (job) chat.jobs.set(conversation.id, job);
  announce('Another tab went on with this conversation, too: there are two of it now.');
}

/* Settings are stored when nothing was changed for a while: with each key all messages would be. */
let typed = null;
let typedTimer = 0;

function keepTypedSoon() {
  typed = chat.current;
  clearTimeout(typedTimer);
  typedTimer = setTimeout(keepTyped, TYPED_MS);
}

/* With the messages that another tab may have stored since. */
function keepTyped() {
  const conversation = typed;
  typed = null;
  clearTimeout(typedTimer);
  if (!conversation) return;
  const stored = store.isStale(conversation) && isKept(conversation) && store.load(conversation.id);
  if (!stored) {
    keep(conversation, false);
    return;
  }
  store.save({ ...stored, settings: conversation.settings }, false);
  refresh();
}

/* As it is stored; an answer that had not ended does not come here. */
function loaded(id) {
  const conversation = store.load(id);
  for (const message of conversation?.messages || []) {
    if (message.state !== 'streaming') continue;
    message.state = 'done';
    message.meta = { ...message.meta, end: 'unfinished' };
  }
  return conversation;
}

/* As it stands: one that is answered, or could not be stored, may be newer than what is stored. */
function conversationOf(id) {
  keepTyped();
  return chat.jobs.get(id)?.conversation || chat.unsaved.get(id) || loaded(id);
}

/* Nothing of it is kept any more. */
function forget(id) {
  const job = chat.jobs.get(id);
  if (job) {
    job.conversation.messages.length = 0;
    job.controller.abort();
  }
  if (typed?.id === id) typed = null;
  chat.ended.delete(id);
  chat.unsaved.delete(id);
  store.drop(id);
}

/* Another tab had not seen the end of the answer that ended here when it stored what it had of it. */
function isEndLost(conversation, stored) {
  const mine = conversation.messages.at(-1);
  const theirs = mine?.id && stored.messages.find(({ id }) => id === mine.id);
  return Boolean(theirs) && theirs.meta?.end === 'unfinished' && mine.meta?.end !== 'unfinished';
}

/* Show what another tab has stored, unless something goes on here: that is compared when it is kept.
 * What nobody looks at is not shown before somebody does. */
function refresh() {
  const { current } = chat;
  const isBusy = chat.jobs.has(current.id) || chat.unsaved.has(current.id) || chat.views.some((view) => view.field);
  if (!isKept(current) || !store.isStale(current)) return;
  const conversation = loaded(current.id);
  if (!conversation) return;
  if (isBusy) takeSettings(current, conversation.settings);
  else if (isEndLost(current, conversation)) keep(current, false);
  else if (!document.hidden) takeOver(conversation);
}

/* Of one that is not shown. */
function keepEnd(conversation) {
  const stored = store.isStale(conversation) && loaded(conversation.id);
  if (stored && isEndLost(conversation, stored)) keep(conversation, false);
}

/* What is shown or answered here and has made room for another is as one that could not be stored. */
function keepHere(id) {
  const conversation = chat.jobs.get(id)?.conversation || (id === chat.current.id ? chat.current : null);
  if (!conversation || !isKept(conversation) || chat.unsaved.has(id) || store.has(id)) return;
  chat.unsaved.set(id, conversation);
  showNotice();
  chat.onchange();
}

/* When two tabs store at once, one may not have seen what the other put into the index, and a browser
 * may find afterwards that both have no room. Looked at once they are done. */
let checkTimer = 0;

function checkSoon() {
  clearTimeout(checkTimer);
  checkTimer = setTimeout(() => {
    for (const conversation of [chat.current, ...[...chat.jobs.values()].map((job) => job.conversation)]) {
      const { id } = conversation;
      keepHere(id);
      const isListed = store.list().some((entry) => entry.id === id);
      if (chat.unsaved.has(id) || !store.has(id) || isListed) continue;
      keep(conversation, false);
      chat.onchange();
    }
  }, CHECK_MS);
}

function deletedElsewhere(id) {
  const isShown = id === chat.current.id;
  if (chat.unsaved.has(id) || !(isShown || chat.jobs.has(id))) return;
  forget(id);
  if (isShown) chat.ongone();
}

/* `text`: what is stored of it, '' before it makes room, null then. */
function changedElsewhere(id, text) {
  if (text === DELETED) deletedElsewhere(id);
  else if (text === null) keepHere(id);
  else if (text === '') return;
  else if (chat.unsaved.has(id)) {
    const mine = chat.unsaved.get(id), isStale = store.isStale(mine);
    /* The other had no room all the same, and has put it back; or it has gone on with it. */
    if (!isStale) keep(mine, false);
    else if (!chat.jobs.has(id) && isBeginning(mine.messages, loaded(id)?.messages || [])) chat.unsaved.delete(id);
    if (isStale && id === chat.current.id) refresh();
    showNotice();
    chat.onchange();
  } else if (id === chat.current.id) {
    keepTyped();
    refresh();
  } else if (chat.ended.has(id)) keepEnd(chat.ended.get(id));
}

/* Of the conversation that is shown; said once, not at every save. */
function showNotice() {
  const text = !chat.unsaved.has(chat.current.id) ? ''
    : 'This conversation will be lost on reload: it is too long for the browser’s storage, others have taken its room, '
      + 'or storage is not available.';
  if (byId('notice').textContent !== text) byId('notice').textContent = text;
  byId('notice').hidden = text === '';
}

/* --- showing ---------------------------------------------------------------------------------- */

function scrollDown() {
  const scroll = byId('scroll');
  scroll.scrollTop = scroll.scrollHeight;
}

function showNewest() {
  byId('newest').hidden = chat.pinned;
}

/* Whenever the messages change their height, before they are painted. */
function follow() {
  if (chat.pinned) scrollDown();
}

const actions = {
  edit(view) {
    if (chat.jobs.has(chat.current.id)) return;
    view.edit((text) => {
      if (text !== null) {
        byId('scroll').focus({ preventScroll: true });
        stop(); // an answer that was asked for since the editor was opened
        send(text, chat.views.indexOf(view));
      } else {
        view.node.querySelector('button')?.focus();
        refresh();
      }
    });
  },
  async again(view) {
    const isFree = () => !chat.jobs.has(chat.current.id) && chat.views.includes(view);
    if (!isFree()) return;
    const { length } = chat.views;
    const last = chat.views.at(-1);
    const after = length - 1 - chat.views.indexOf(view);
    const lost = after === 1 ? 'The message' : `The ${count(after)} messages`;
    const text = `${lost} after it will be lost.`;
    if (after > 0 && !(await confirmLoss('Answer this again?', text, 'Answer again'))) return;
    if (!isFree()) return;
    /* Another tab may have gone on meanwhile: those messages were not asked about. */
    const isAsked = length === chat.views.length && last === chat.views.at(-1);
    if (isAsked) answer(chat.views.indexOf(view));
    else await actions.again(view);
  },
};

const nameOf = (message) => message.meta?.model || chat.model?.id || 'Model';

function addView(message) {
  const view = new MessageView(message, actions, nameOf(message));
  chat.views.push(view);
  byId('log').append(view.node);
  return view;
}

function cutViews(place) {
  keepFocus(() => { for (const view of chat.views.splice(place)) view.node.remove(); });
}

/* Whoever is at a message that goes stays among the messages. */
function keepFocus(change) {
  const hadFocus = byId('log').contains(document.activeElement);
  change();
  if (hadFocus && !byId('log').contains(document.activeElement)) byId('scroll').focus({ preventScroll: true });
}

function welcome() {
  const samples = ['Explain how a KV cache works.', 'Write a function that reverses a list, in C.',
    'Compare three sorting algorithms in a table.'];
  return h('div', { className: 'welcome', id: 'welcome' },
    h('p', { className: 'welcome-title', text: 'What would you like to ask?' }),
    h('div', { className: 'samples' }, ...samples.map((text) =>
      h('button', { type: 'button', text, onclick: () => submit(text) }))));
}

function showConversation(conversation) {
  keepTyped();
  chat.current = conversation;
  chat.views = [];
  const log = byId('log');
  keepFocus(() => log.replaceChildren());
  if (!isKept(conversation)) log.append(welcome());
  const job = chat.jobs.get(conversation.id);
  for (const message of conversation.messages) {
    const view = addView(message);
    if (job?.message === message) {
      job.view = view;
      paint(job);
    }
  }
  showTitle();
  chat.pinned = true;
  showNewest();
  scrollDown();
  showBusy();
  showNotice();
  chat.onchange();
}

function showTitle() {
  const { title } = chat.current;
  byId('title').textContent = title || 'New chat';
  document.title = title ? `${title} · kvahead` : 'kvahead';
}

const hasGrown = (message, longer) =>
  Boolean(message?.id) && message.id === longer?.id && longer.content.startsWith(message.content);

/* The conversation that is shown, as another tab has stored it: what is the same stays as it is. */
function takeOver(conversation) {
  const { messages } = chat.current;
  const isSame = (message, i) => JSON.stringify(message) === JSON.stringify(messages[i]);
  const changed = conversation.messages.findIndex((message, i) => !isSame(message, i));
  let same = changed < 0 ? conversation.messages.length : changed;
  const { settings } = chat.current;
  const news = conversation.settings;
  const scroll = byId('scroll');
  const top = scroll.scrollTop;
  if (hasGrown(messages[same], conversation.messages[same])) {
    chat.views[same].become(conversation.messages[same]);
    same++;
  }
  conversation.messages.splice(0, same, ...messages.slice(0, same));
  chat.current = Object.assign(conversation, { settings });
  cutViews(same);
  for (const message of conversation.messages.slice(same)) addView(message);
  if (chat.pinned) scrollDown();
  else scroll.scrollTop = top;
  takeSettings(conversation, news);
  showTitle();
  showBusy();
  chat.onchange();
}

/* The button that sends stops while an answer comes. */
function showBusy() {
  const busy = chat.jobs.has(chat.current.id);
  const button = byId('send');
  byId('send-icon').setAttribute('href', busy ? '#i-stop' : '#i-send');
  button.setAttribute('aria-label', busy ? 'Stop' : 'Send');
  button.classList.toggle('busy', busy);
  showProgress(chat.jobs.get(chat.current.id));
  button.disabled = !busy && byId('prompt').value.trim() === '';
  byId('log').setAttribute('aria-busy', String(busy));
}

/* --- asking ----------------------------------------------------------------------------------- */

function titleOf(text) {
  const line = text.trim().split('\n', 1)[0];
  return line.length > 60 ? `${line.slice(0, 60).trimEnd()}…` : line;
}

/* A text of the user's at a place in the conversation; what was there and after it goes. */
function send(text, place) {
  const conversation = chat.current;
  keepFocus(() => byId('welcome')?.remove());
  conversation.messages.splice(place);
  cutViews(place);
  const message = { role: 'user', content: text };
  conversation.messages.push(message);
  if (!conversation.title) conversation.title = titleOf(text);
  addView(message);
  showTitle();
  answer(place + 1);
}

function submit(text) {
  if (chat.jobs.has(chat.current.id) || !text.trim()) return;
  send(text.trim(), chat.current.messages.length);
}

/* Roles take turns: an answer that failed without a word is left out. */
function messagesOf(conversation, place) {
  const list = [];
  if (conversation.settings.system) list.push({ role: 'system', content: conversation.settings.system });
  for (const { role, content } of conversation.messages.slice(0, place)) {
    const last = list.at(-1);
    if (role === 'assistant' && content === '') continue;
    if (role === 'user' && last?.role === 'user') last.content += `\n\n${content}`;
    else list.push({ role, content });
  }
  return list;
}

/* Ask for the message at `place`. */
function answer(place) {
  const conversation = chat.current;
  conversation.messages.splice(place);
  cutViews(place);
  const message = { id: newId(), role: 'assistant', content: '', state: 'streaming', meta: { model: chat.model?.id } };
  const body = {
    ...(chat.model ? { model: chat.model.id } : {}),
    messages: messagesOf(conversation, place),
    stream: true,
    stream_options: { include_usage: true },
    ...requestFields(conversation.settings),
  };
  conversation.messages.push(message);
  keep(conversation, true);
  const job = { conversation, message, view: addView(message), controller: new AbortController(),
    started: performance.now(), first: 0, last: 0, pieces: 0, progress: 'Waiting', saved: performance.now(),
    frame: 0, notBefore: 0 };
  chat.jobs.set(conversation.id, job);
  chat.pinned = true;
  paint(job);
  showBusy();
  showNewest();
  chat.onchange();
  return run(job, body);
}

function stop() {
  chat.jobs.get(chat.current.id)?.controller.abort();
}

/* Now, in this frame: but a long block that takes long to make must not take all frames. */
function paint(job) {
  cancelAnimationFrame(job.frame); // it would paint what has ended by then
  job.frame = 0;
  if (job.conversation !== chat.current) return;
  const begun = performance.now();
  if (begun < job.notBefore) {
    soon(job);
    return;
  }
  job.view.grow();
  showProgress(job);
  const spent = performance.now() - begun;
  job.notBefore = spent > 5 ? begun + 8 * spent : 0;
}

/* Beside the button that stops it, which stays where it is. */
function showProgress(job) {
  const text = !job ? '' : job.first ? statsText({ tokens: job.pieces, rate: rateOf(job) }) : job.progress;
  if (byId('hint').textContent !== text) byId('hint').textContent = text;
}

function soon(job) {
  if (!job.frame) job.frame = requestAnimationFrame(() => paint(job));
}

const rateOf = (job) => (job.last > job.first ? (job.pieces - 1) * 1000 / (job.last - job.first) : 0);

function takeFrame(job, frame) {
  const choice = frame.choices?.[0];
  const text = choice?.delta?.content;
  const thought = choice?.delta?.reasoning_content;
  if (text || thought) {
    job.last = performance.now();
    job.first = job.first || job.last;
    job.pieces++;
    if (thought) job.message.thoughts = (job.message.thoughts ?? '') + thought;
    job.message.content += text ?? '';
  }
  if (choice?.finish_reason) job.end = choice.finish_reason;
  if (frame.usage) job.usage = frame.usage;
  if (job.last - job.saved > SAVE_EVERY_MS) {
    job.saved = job.last;
    keep(job.conversation, false);
  }
}

function metaOf(job) {
  const usage = job.usage;
  const tokens = usage ? usage.completion_tokens : job.pieces;
  const spent = (job.last - job.first) / 1000;
  return {
    model: job.message.meta.model,
    end: job.end,
    tokens,
    first: job.first ? (job.first - job.started) / 1000 : 0,
    rate: tokens > 1 && spent > 0 ? (tokens - 1) / spent : 0,
    between: tokens > 1 ? spent / (tokens - 1) : 0,
    prompt: usage?.prompt_tokens,
    cached: usage?.prompt_tokens_details?.cached_tokens,
    kv: usage?.kvahead,
  };
}

async function run(job, body) {
  try {
    for await (const event of streamChat(body, job.controller.signal)) {
      if (event.frame) takeFrame(job, event.frame);
      else job.progress = progressText(event.comment);
      soon(job);
    }
  } catch (error) {
    if (error.name === 'AbortError') job.end = 'stopped';
    else if (chat.leaving) job.end = 'interrupted';
    else job.message.error = { message: errorText(error), status: error.status, param: error.param };
  }
  finish(job);
}

/* For as long as another tab may take to see that it was stored. */
function rememberEnd(conversation) {
  const { id } = conversation;
  if (!isKept(conversation)) return;
  chat.ended.set(id, conversation);
  setTimeout(() => {
    if (chat.ended.get(id) === conversation) chat.ended.delete(id);
  }, ENDED_MS);
}

function errorText(error) {
  if (!(error instanceof ApiError)) return `The page failed: ${error.message}`;
  const wait = error.retryAfter ? ` It asks to be tried again after ${count(error.retryAfter)} s.` : '';
  return error.message + wait;
}

function finish(job) {
  const { conversation, message } = job;
  cancelAnimationFrame(job.frame);
  job.frame = -1;
  if (chat.jobs.get(conversation.id) === job) chat.jobs.delete(conversation.id);
  message.state = 'done';
  message.meta = metaOf(job);
  keep(conversation, true);
  rememberEnd(conversation);
  if (conversation === chat.current) {
    job.view.settle();
    showBusy();
  }
  chat.onchange();
  if (message.error) {
    announce(message.error.message);
    if (message.error.status === 0 || message.error.param === 'model') chat.onlost();
    if (message.error.status === 401) chat.onkey(message.error.message);
    else if (conversation === chat.current) chat.onrefused(message.error);
  } else if (isKept(conversation)) { /* else it was deleted meanwhile, which has been said */
    announce(job.end === 'stopped' ? 'Stopped' : `Answer: ${message.content.slice(0, 2000)}`);
  }
}

/* Answers of the conversation with their cost, newest first. */
function costsOf(conversation) {
  return conversation.messages.filter((message) => message.meta?.kv).map((message) => message.meta).reverse();
}

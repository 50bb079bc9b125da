/* chat.js - the conversation that is shown, the answers that are coming, and what is kept of them.
 * An answer goes on when another conversation is looked at; a reload ends it, and what had come is
 * kept. */

const SAVE_EVERY_MS = 1000;
const PINNED_PX = 48;

const chat = {
  current: null,    /* the conversation that is shown; kept once it has a message */
  views: [],        /* of its messages */
  jobs: new Map(),  /* id of a conversation -> its answer that is coming */
  unsaved: new Map(),  /* id -> a conversation that could not be stored; the page alone has it */
  model: null,      /* {id, kv_policy, max_model_len} */
  leaving: false,   /* the page goes */
  pinned: true,     /* the newest line stays in sight */
  onchange: () => {},
  onkey: () => {},     /* a key is wanted */
  onrefused: () => {}, /* a field was refused */
  onlost: () => {},    /* the server was not there, or is another one */
};

const emptyConversation = (settings) =>
  ({ id: newId(), title: '', settings: structuredClone(settings || {}), messages: [] });
const isKept = (conversation) => conversation.messages.length > 0;

function keep(conversation, isNews) {
  if (!isKept(conversation)) return;
  if (store.save(conversation, isNews)) chat.unsaved.delete(conversation.id);
  else chat.unsaved.set(conversation.id, conversation);
  showNotice();
}

/* As it stands: one that is answered, or could not be stored, may be newer than what is stored. */
const conversationOf = (id) => chat.jobs.get(id)?.conversation || chat.unsaved.get(id) || store.load(id);

/* Of the conversation that is shown; said once, not at every save. */
function showNotice() {
  const text = !chat.unsaved.has(chat.current.id) ? ''
    : 'This conversation will be lost on reload: it is too long for the browser’s storage, or storage is not available.';
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
        stop(); // an answer that was asked for since the editor was opened
        send(text, chat.views.indexOf(view));
      } else {
        view.node.querySelector('button')?.focus();
      }
    });
  },
  again(view) {
    if (!chat.jobs.has(chat.current.id)) answer(chat.views.indexOf(view));
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
  for (const view of chat.views.splice(place)) view.node.remove();
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
  chat.current = conversation;
  chat.views = [];
  const log = byId('log');
  log.replaceChildren();
  if (!isKept(conversation)) log.append(welcome());
  const job = chat.jobs.get(conversation.id);
  for (const message of conversation.messages) {
    if (message.state === 'streaming' && message !== job?.message) {
      message.state = 'done';
      message.meta = { ...message.meta, end: 'interrupted' };
    }
    const view = addView(message);
    if (job?.message === message) {
      job.view = view;
      paint(job);
    }
  }
  byId('title').textContent = conversation.title || 'New chat';
  document.title = conversation.title ? `${conversation.title} · kvahead` : 'kvahead';
  chat.pinned = true;
  showNewest();
  scrollDown();
  showBusy();
  showNotice();
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
  byId('welcome')?.remove();
  conversation.messages.splice(place);
  cutViews(place);
  const message = { role: 'user', content: text };
  conversation.messages.push(message);
  if (!conversation.title) conversation.title = titleOf(text);
  addView(message);
  byId('title').textContent = conversation.title;
  document.title = `${conversation.title} · kvahead`;
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
  const message = { role: 'assistant', content: '', state: 'streaming', meta: { model: chat.model?.id } };
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

const rateOf = (job) => (job.pieces > 1 ? (job.pieces - 1) * 1000 / (job.last - job.first) : 0);

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
  } else {
    announce(job.end === 'stopped' ? 'Stopped' : `Answer: ${job.view.body.textContent.slice(0, 2000)}`);
  }
}

/* Answers of the conversation with their cost, newest first. */
function costsOf(conversation) {
  return conversation.messages.filter((message) => message.meta?.kv).map((message) => message.meta).reverse();
}

/* main.js - the parts put together: what is served, the list of conversations, views, keys, theme,
 * the keyboard. */

const SERVED_EVERY_MS = 2000;
const wide = matchMedia('(min-width: 1180px)');
const narrow = matchMedia('(max-width: 760px)');

const form = new SettingsForm(byId('settings'), () => {
  keepTypedSoon();
  showSummary();
});

/* --- what is served --------------------------------------------------------------------------- */

let models = [];
let servedTimer = 0;

function showState(text, kind) {
  byId('state').textContent = text;
  byId('dot').className = `dot ${kind}`;
}

/* The first of these that is served, or the first that is. */
function chooseModel(...ids) {
  chat.model = ids.map((id) => models.find((model) => model.id === id)).find(Boolean) || models[0] || null;
  if (chat.model) byId('model').value = chat.model.id;
}

async function askServed() {
  clearTimeout(servedTimer);
  try {
    const list = (await getJson('v1/models')).data;
    if (list.length === 0) {
      showState('Loading the model', 'wait');
      servedTimer = setTimeout(askServed, SERVED_EVERY_MS);
      return;
    }
    models = list;
    byId('model').replaceChildren(...models.map(({ id }) => h('option', { value: id, text: id })));
    chooseModel(chat.model?.id, store.getText('model'));
    const policies = (await getJson('v1/kvahead/policies')).data;
    form.offer(chat.model, policies);
    showState(`${count(chat.model.max_model_len)} tokens`, 'ready');
    showSummary();
  } catch (error) {
    if (error.status === 401) {
      showState('Needs a key', 'bad');
      askKey(keys.get() ? error.message : '');
      return;
    }
    const text = error.status === 429 ? 'Too many wrong keys' : error.message;
    showState(error.status ? text : 'Not reachable', 'bad');
    servedTimer = setTimeout(askServed, Math.max(2 * SERVED_EVERY_MS, error.retryAfter * 1000 || 0));
  }
}

/* --- keys ------------------------------------------------------------------------------------- */

function showKeyProblem(problem) {
  byId('key-problem').textContent = problem;
  byId('key-problem').hidden = !problem;
  byId('key-field').setAttribute('aria-invalid', String(Boolean(problem)));
  byId('key-field').focus();
}

function askKey(problem) {
  const dialog = byId('key-dialog');
  byId('key-field').value = '';
  byId('key-forget').hidden = !keys.get();
  if (!dialog.open) dialog.showModal();
  showKeyProblem(problem);
}

function submitKey() {
  const key = byId('key-field').value.trim();
  if (!key) return;
  if (isKey(key)) useKey(key);
  else showKeyProblem('A key has no spaces, and no letters or signs that are not ASCII. Was more than the key copied?');
}

/* What was refused for want of a key is asked again. */
async function useKey(key) {
  if (key) keys.set(key);
  else keys.forget();
  byId('key-dialog').close();
  await askServed();
  const place = chat.current.messages.length - 1;
  if (chat.model && chat.current.messages[place]?.error?.status === 401 && !byId('key-dialog').open) answer(place);
  live.show(!byId('live').hidden);
}

/* --- the list --------------------------------------------------------------------------------- */

let listed = null;

function listRow(entry) {
  const current = entry.id === chat.current.id;
  const name = entry.title || 'Untitled';
  const row = { type: 'button', className: 'open', 'aria-current': current ? 'true' : null, 'data-id': entry.id };
  const drop = { type: 'button', className: 'icon drop', 'aria-label': `Delete ${name}`, 'data-drop': entry.id };
  return h('li', { className: current ? 'row-item current' : 'row-item' },
    h('button', { ...row, title: name, text: name }), h('button', drop, icon('trash')));
}

/* What could not be stored, newest first, as the index would have it, and the index. */
function allEntries() {
  const stored = store.list();
  const ids = new Set(stored.map(({ id }) => id));
  const unsaved = [...chat.unsaved.values()].filter(({ id }) => !ids.has(id)).reverse();
  return [...unsaved.map(({ id, title }) => ({ id, title, at: Date.now() })), ...stored];
}

/* Whoever is at a button of the list by keyboard stays at it. */
function replaceRows(rows) {
  const list = byId('conversations');
  const { id, drop } = list.contains(document.activeElement) ? document.activeElement.dataset : {};
  list.replaceChildren(...rows);
  if (!id && !drop) return;
  const buttons = [...list.querySelectorAll('button')];
  buttons.find(({ dataset }) => dataset.id === id && dataset.drop === drop)?.focus({ preventScroll: true });
}

function showList() {
  const entries = store.list();
  const wanted = byId('search').value.trim().toLowerCase();
  const state = `${chat.current.id} ${[...chat.unsaved.keys()]} ${wanted}`;
  if (listed && listed.entries === entries && listed.state === state) return;
  listed = { entries, state };
  const rows = [];
  let group = '';
  for (const entry of allEntries()) {
    if (wanted && !entry.title.toLowerCase().includes(wanted)) continue;
    if (ago(entry.at) !== group) {
      group = ago(entry.at);
      rows.push(h('li', { className: 'group', text: group }));
    }
    rows.push(listRow(entry));
  }
  const none = wanted ? 'Nothing found' : 'No conversations yet';
  if (rows.length === 0) rows.push(h('li', { className: 'group', text: none }));
  replaceRows(rows);
  byId('side-foot').textContent = entries.length >= CONVERSATIONS_MAX
    ? `The ${CONVERSATIONS_MAX} newest are kept, in this browser only.` : 'Kept in this browser only.';
}

function showSummary() {
  byId('summary').textContent = settingsSummary(chat.current.settings, chat.model);
}

const addressOf = (conversation) =>
  (isKept(conversation) ? `#${conversation.id}` : location.pathname + location.search);

/* `place`: what the address bar shows is a new place to go back from. */
function open(conversation, place = true) {
  /* First: what is shown takes the address that there is. */
  if (place && location.hash !== `#${conversation.id}`) history.pushState(null, '', addressOf(conversation));
  showConversation(conversation);
  form.show(conversation.settings);
  showSummary();
  openSide(false);
}

/* One that is new already stays. */
function startNew() {
  showView('chat');
  if (isKept(chat.current)) open(emptyConversation(chat.current.settings));
  else openSide(false);
  byId('prompt').focus();
}

/* In the place of one that is gone. */
function showNew() {
  const conversation = emptyConversation(chat.current.settings);
  history.replaceState(null, '', addressOf(conversation));
  open(conversation, false);
}

const openButtons = () => [...byId('conversations').querySelectorAll('.open')];

async function dropConversation(id) {
  const entry = allEntries().find((one) => one.id === id);
  if (!entry || !(await confirmLoss('Delete this conversation?', entry.title, 'Delete'))) return;
  const place = openButtons().findIndex((button) => button.dataset.id === id);
  forget(id);
  if (chat.current.id === id) {
    showView('chat');
    showNew();
    byId('prompt').focus();
  } else {
    showList();
    (openButtons()[place] || openButtons().at(-1) || byId('new')).focus();
  }
  announce('Deleted');
}

/* What the address names: a conversation, or a new one. What is no conversation changes nothing. */
function openAddress() {
  const id = location.hash.slice(1);
  const conversation = /^\w+$/.test(id) && conversationOf(id);
  if (id && !conversation && chat.current) {
    history.replaceState(null, '', addressOf(chat.current));
    return;
  }
  showView('chat');
  open(conversation || emptyConversation(), false);
}

function skip(event) {
  event.preventDefault();
  showView('chat');
  byId('prompt').focus();
}

/* --- views and panels ------------------------------------------------------------------------- */

function showView(name) {
  const isLive = name === 'live';
  byId('chat').hidden = isLive;
  byId('live').hidden = !isLive;
  byId('view-chat').setAttribute('aria-pressed', String(!isLive));
  byId('view-live').setAttribute('aria-pressed', String(isLive));
  live.show(isLive);
}

function openSide(on) {
  byId('app').classList.toggle('side-open', on);
  byId('menu').setAttribute('aria-expanded', String(on));
  if (narrow.matches && !on && byId('side').contains(document.activeElement)) byId('menu').focus();
  byId('side').inert = narrow.matches && !on;
  if (on) byId('side-close').focus();
}

function openPanel(on, takesFocus = true) {
  byId('panel').hidden = !on;
  byId('app').classList.toggle('panel-open', on);
  for (const id of ['tune', 'summary']) byId(id).setAttribute('aria-expanded', String(on));
  if (on) {
    form.showCosts(costsOf(chat.current));
    if (takesFocus) byId('f-kv-policy')?.focus({ preventScroll: true });
  }
}

function closeOverlays() {
  if (narrow.matches) openSide(false);
  if (!wide.matches && !byId('panel').hidden) openPanel(false);
}

/* --- theme ------------------------------------------------------------------------------------ */

const THEMES = { '': 'as the system', light: 'light', dark: 'dark' };
let theme = '';

function useTheme(name) {
  theme = name;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId('theme').setAttribute('aria-label', `Theme: ${THEMES[theme]}`);
  byId('theme').title = `Theme: ${THEMES[theme]}`;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  useTheme(names[(names.indexOf(theme) + 1) % names.length]);
  store.setText('theme', theme);
  announce(`Theme: ${THEMES[theme]}`);
}

/* --- what people do --------------------------------------------------------------------------- */

function draft(text) {
  try {
    sessionStorage.setItem('kvahead.draft', text);
  } catch { /* it is lost on reload */ }
}

function sendPrompt() {
  const prompt = byId('prompt');
  if (chat.jobs.has(chat.current.id)) {
    stop();
    return;
  }
  const text = prompt.value;
  if (!text.trim()) return;
  prompt.value = '';
  draft('');
  fitHeight(prompt);
  submit(text);
}

function onPromptKey(event) {
  const prompt = byId('prompt');
  if (isSending(event) && !matchMedia('(pointer: coarse)').matches) {
    event.preventDefault();
    if (!chat.jobs.has(chat.current.id)) sendPrompt();
  } else if (event.key === 'ArrowUp' && prompt.value === '') {
    const last = chat.views.findLast((view) => view.message.role === 'user');
    if (!last) return;
    event.preventDefault();
    actions.edit(last);
  }
}

/* What would be typed: where Alt makes other characters of the keys N, L and S they are not taken. A
 * layout of another script than Latin has no such letters; there the place of the key counts. */
function letterOf({ key, code }) {
  const isForeign = /^\p{L}$/u.test(key) && !/\p{Script=Latin}/u.test(key);
  return (isForeign ? code.replace(/^Key/, '') : key).toLowerCase();
}

function onKey(event) {
  if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const does = { n: startNew, l: () => showView(byId('live').hidden ? 'live' : 'chat'),
      s: () => openPanel(byId('panel').hidden) }[letterOf(event)];
    if (does) {
      event.preventDefault();
      does();
    }
    return;
  }
  if (document.querySelector('dialog[open]')) return;
  if (event.key === 'Escape') {
    if (byId('app').classList.contains('side-open')) openSide(false);
    else if (!byId('panel').hidden && byId('panel').contains(document.activeElement)) {
      openPanel(false);
      byId('tune').focus();
    } else stop();
  } else if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    showView('chat');
    byId('prompt').focus();
  }
}

/* What comes is kept as what has come: nobody goes on with it. */
function leave() {
  chat.leaving = true;
  keepTyped();
  for (const { conversation, message } of chat.jobs.values()) {
    message.state = 'done';
    message.meta = { ...message.meta, end: 'interrupted' };
    keep(conversation, false);
  }
}

const on = (id, type, does) => byId(id).addEventListener(type, does);

function listen() {
  on('composer', 'submit', (event) => { event.preventDefault(); sendPrompt(); });
  /* The second click of two on a button that sends, and then stops, is no wish to stop. */
  on('send', 'click', (event) => { if (event.detail > 1) event.preventDefault(); });
  on('prompt', 'keydown', onPromptKey);
  on('prompt', 'input', () => { draft(byId('prompt').value); fitHeight(byId('prompt')); showBusy(); });
  on('new', 'click', startNew);
  on('search', 'input', showList);
  on('conversations', 'click', (event) => {
    const button = event.target.closest('button');
    if (button?.dataset.drop) dropConversation(button.dataset.drop);
    if (!button?.dataset.id) return;
    const id = button.dataset.id;
    const conversation = conversationOf(id);
    showView('chat');
    if (conversation) open(conversation);
    else { store.drop(id); showList(); }
  });
  on('menu', 'click', () => openSide(true));
  on('side-close', 'click', () => { openSide(false); byId('menu').focus(); });
  on('scrim', 'click', closeOverlays);
  on('view-chat', 'click', () => showView('chat'));
  on('view-live', 'click', () => showView('live'));
  on('tune', 'click', () => openPanel(byId('panel').hidden));
  on('summary', 'click', () => openPanel(byId('panel').hidden));
  on('panel-close', 'click', () => { openPanel(false); byId('tune').focus(); });
  on('key', 'click', () => askKey(''));
  on('key-form', 'submit', (event) => {
    event.preventDefault();
    submitKey();
  });
  on('key-cancel', 'click', () => byId('key-dialog').close());
  on('key-forget', 'click', () => useKey(''));
  on('theme', 'click', nextTheme);
  on('model', 'change', () => {
    chooseModel(byId('model').value);
    store.setText('model', chat.model.id);
    form.offer(chat.model, form.policies);
  });
  on('newest', 'click', () => { chat.pinned = true; showNewest(); scrollDown(); });
  on('scroll', 'scroll', () => {
    const scroll = byId('scroll');
    chat.pinned = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < PINNED_PX;
    showNewest();
  });
  on('scroll', 'wheel', (event) => { if (event.deltaY < 0 && byId('scroll').scrollTop > 0) chat.pinned = false; });
  document.addEventListener('keydown', onKey);
  narrow.addEventListener('change', () => openSide(false));
  document.querySelector('.skip').addEventListener('click', skip);
  addEventListener('popstate', openAddress);
  addEventListener('storage', ({ key, newValue }) => {
    if (key === INDEX) {
      showList();
      checkSoon();
    }
    else if (key?.startsWith(PREFIX)) changedElsewhere(key.slice(PREFIX.length), newValue);
  });
  addEventListener('pageshow', () => {
    chat.leaving = false;
    refresh();
  });
  addEventListener('pagehide', leave);
  document.addEventListener('visibilitychange', refresh);
  new ResizeObserver(follow).observe(byId('log'));
}

chat.onchange = () => {
  showList();
  live.wake();
  if (!byId('panel').hidden) form.showCosts(costsOf(chat.current));
  const hash = `#${chat.current.id}`;
  if (isKept(chat.current) && location.hash !== hash) history.replaceState(null, '', hash);
};
chat.onkey = askKey;
chat.onlost = askServed;
chat.onrefused = (error) => {
  const field = form.fieldOf(error.param);
  if (!field) return;
  /* The next keys of whoever is typing are not for that field. */
  const at = document.activeElement;
  const takesFocus = !(at.matches('textarea, input') && at.value !== '');
  openPanel(true, takesFocus);
  form.refuse(field, error.message, takesFocus);
};
chat.onsettings = () => {
  form.update(chat.current.settings);
  showSummary();
};
chat.ongone = () => {
  showNew();
  announce('Another tab has deleted this conversation');
};

useTheme(['light', 'dark'].includes(store.getText('theme')) ? store.getText('theme') : '');
listen();
openAddress();
openSide(false);
byId('prompt').value = (() => { try { return sessionStorage.getItem('kvahead.draft') || ''; } catch { return ''; } })();
showBusy();
askServed();
if (!narrow.matches) byId('prompt').focus();

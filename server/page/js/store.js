/* store.js - conversations in localStorage, each under its own name, and an index of them. What is
 * listed is read from the index, so that many conversations cost no more than their titles.
 * Bounded: beyond CONVERSATIONS_MAX, or when the browser's room is full, the oldest goes. One that
 * is too long for all of that room is not stored, and none goes for it. */

const PREFIX = 'kvahead.';
const INDEX = `${PREFIX}index`;
const PROBE = `${PREFIX}probe`;
const DELETED = 'null'; /* put in a conversation's place before it is removed, unless it makes room for another */
const CONVERSATIONS_MAX = 200;
const TITLE_MAX = 80;

const store = (() => {
  let cachedText = null;
  let cached = [];

  /* What somebody else wrote there, or an older page, must not break this one. */
  function parse(text, fallback) {
    try {
      const value = JSON.parse(text);
      return value === null ? fallback : value;
    } catch {
      return fallback;
    }
  }

  function read(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  }

  function remove(name) {
    try {
      localStorage.removeItem(name);
    } catch { /* nothing was kept */ }
  }

  const isEntry = (entry) => entry && typeof entry.id === 'string' && typeof entry.title === 'string';

  function list() {
    const text = read(INDEX);
    if (text !== cachedText) {
      const value = parse(text, []);
      cachedText = text;
      cached = Array.isArray(value) ? value.filter(isEntry).slice(0, CONVERSATIONS_MAX) : [];
    }
    return cached;
  }

  /* False: there is no room, or no storage. */
  function put(name, text) {
    try {
      localStorage.setItem(name, text);
      return true;
    } catch {
      return false;
    }
  }

  function putIndex(entries) {
    const stored = put(INDEX, JSON.stringify(entries.slice(0, CONVERSATIONS_MAX)));
    cachedText = null;
    return stored;
  }

  function sizeOf(name) {
    const text = read(name);
    return text === null ? 0 : name.length + text.length;
  }

  /* Whether a conversation and an index of it alone have room once all others are gone, without
   * sending any of them away: what their room is short of must be free. Rooms are counted in
   * characters; a browser that counts otherwise may be mistaken about, which makeRoom bears. */
  function canFit(name, text, entry, others) {
    const given = others.reduce((sum, { id }) => sum + sizeOf(PREFIX + id), sizeOf(name) + sizeOf(INDEX));
    const missing = name.length + text.length + INDEX.length + JSON.stringify([entry]).length - given;
    if (missing <= 0) return true;
    const fits = put(PROBE, text.slice(0, Math.max(0, missing - PROBE.length)));
    remove(PROBE);
    return fits;
  }

  /* Remove the oldest of `others` until `done` holds. False, with all as it was: it never does. */
  function makeRoom(others, done) {
    const gone = [];
    for (const { id } of others.slice().reverse()) {
      const name = PREFIX + id;
      const text = read(name);
      /* Emptied first: where nothing can be written nothing is removed. */
      if (text !== null && !put(name, '')) break;
      remove(name);
      if (text !== null) gone.push([name, text]);
      if (done(id)) return true;
    }
    for (const [name, text] of gone.reverse()) put(name, text);
    return false;
  }

  /* Store a conversation, and `entries` with its `entry` in them. The oldest others go if that makes
   * room for it; one that has none even alone (false) takes nobody's place. */
  function write(name, text, entry, entries) {
    const former = read(INDEX);
    const others = entries.filter((other) => other !== entry);
    let kept = entries;
    const done = () => {
      /* The index first: without the others it is shorter, and that room may be wanted. */
      if (putIndex(kept) && put(name, text)) return true;
      if (former === null) remove(INDEX);
      else put(INDEX, former);
      cachedText = null;
      return false;
    };
    const doneWithout = (gone) => {
      kept = kept.filter(({ id }) => id !== gone);
      return done();
    };
    if (!done() && !(canFit(name, text, entry, others) && makeRoom(others, doneWithout))) return false;
    for (const { id } of entries.slice(CONVERSATIONS_MAX)) remove(PREFIX + id);
    return true;
  }

  /* Each writing of a conversation has a name of its own, at the beginning of what is stored. Those of
   * an older page have none: they grow. */
  const revisionIn = (text) => /^\{"revision":"(\w*)"/.exec(text)?.[1] ?? `_${text.length}`;

  function load(id) {
    const text = read(PREFIX + id);
    const value = parse(text, null);
    if (!value || !Array.isArray(value.messages)) return null;
    const isMessage = (m) => m && typeof m.content === 'string' && (m.role === 'user' || m.role === 'assistant');
    return {
      revision: revisionIn(text),
      id,
      title: String(value.title || ''),
      settings: value.settings && typeof value.settings === 'object' ? value.settings : {},
      messages: value.messages.filter(isMessage),
    };
  }

  /* Somebody else has written it since it was loaded or saved here. */
  function isStale({ id, revision }) {
    const text = read(PREFIX + id);
    return text !== null && revisionIn(text) !== revision;
  }

  /* A conversation that was written in moves to the top. */
  function save(conversation, isNews = true) {
    const entry = { id: conversation.id, title: conversation.title.slice(0, TITLE_MAX), at: Date.now() };
    const entries = list().slice();
    const place = entries.findIndex((other) => other.id === conversation.id);
    if (place >= 0 && !isNews) {
      entry.at = entries[place].at;
      entries[place] = entry;
    } else {
      if (place >= 0) entries.splice(place, 1);
      entries.unshift(entry);
    }
    const revision = newId();
    const text = JSON.stringify({ ...conversation, revision });
    if (!write(PREFIX + conversation.id, text, entry, entries)) return false;
    conversation.revision = revision;
    return true;
  }

  function drop(id) {
    put(PREFIX + id, DELETED);
    remove(PREFIX + id);
    putIndex(list().filter((entry) => entry.id !== id));
  }

  return {
    list,
    load,
    isStale,
    has: (id) => read(PREFIX + id) !== null,
    save,
    drop,
    getText: (name) => read(PREFIX + name),
    setText: (name, text) => put(PREFIX + name, text), // no conversation goes for it
  };
})();

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

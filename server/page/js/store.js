/* store.js - conversations in localStorage, each under its own name, and an index of them. What is
 * listed is read from the index, so that many conversations cost no more than their titles.
 * Bounded: beyond CONVERSATIONS_MAX, or when the browser's room is full, the oldest goes. */

const PREFIX = 'kvahead.';
const INDEX = `${PREFIX}index`;
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

  /* Write; the oldest others make room. False: it does not fit alone. */
  function write(name, text, keep) {
    for (let entries = list();;) {
      try {
        localStorage.setItem(name, text);
        return true;
      } catch {
        const oldest = entries.findLast((entry) => entry.id !== keep);
        if (!oldest) return false;
        remove(PREFIX + oldest.id);
        entries = entries.filter((entry) => entry !== oldest); // also where the index cannot be written
        writeIndex(entries);
      }
    }
  }

  function writeIndex(entries) {
    const kept = entries.slice(0, CONVERSATIONS_MAX);
    for (const entry of entries.slice(CONVERSATIONS_MAX)) remove(PREFIX + entry.id);
    try {
      localStorage.setItem(INDEX, JSON.stringify(kept));
    } catch { /* the caller's own write tells */ }
    cachedText = null;
  }

  function load(id) {
    const value = parse(read(PREFIX + id), null);
    if (!value || !Array.isArray(value.messages)) return null;
    const isMessage = (m) => m && typeof m.content === 'string' && (m.role === 'user' || m.role === 'assistant');
    return {
      id,
      title: String(value.title || ''),
      settings: value.settings && typeof value.settings === 'object' ? value.settings : {},
      messages: value.messages.filter(isMessage),
    };
  }

  /* A conversation that was written in moves to the top. */
  function save(conversation, isNews = true) {
    const entry = { id: conversation.id, title: conversation.title.slice(0, TITLE_MAX), at: Date.now() };
    if (!write(PREFIX + conversation.id, JSON.stringify(conversation), conversation.id)) return false;
    const entries = list().slice();
    const place = entries.findIndex((other) => other.id === conversation.id);
    if (place >= 0 && !isNews) {
      entries[place] = { ...entry, at: entries[place].at };
    } else {
      if (place >= 0) entries.splice(place, 1);
      entries.unshift(entry);
    }
    writeIndex(entries);
    return true;
  }

  function drop(id) {
    remove(PREFIX + id);
    writeIndex(list().filter((entry) => entry.id !== id));
  }

  return {
    list,
    load,
    save,
    drop,
    getText: (name) => read(PREFIX + name),
    setText: (name, text) => write(PREFIX + name, text, null),
  };
})();

const newId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

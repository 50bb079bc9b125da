/* api.js - what is asked of the server: with the key of this tab, with errors that say what is
 * wrong, and answers as they come. Addresses are relative, so that a proxy may serve the page below
 * a path of its own. */

const KEY = 'kvahead.key';

/* What a header can carry, and a server compares. */
const isKey = (text) => /^[\x21-\x7e]+$/.test(text);

const keys = (() => {
  let key = '';
  try {
    const stored = sessionStorage.getItem(KEY) || '';
    if (isKey(stored)) key = stored;
  } catch { /* it lasts until a reload */ }
  return {
    get: () => key,
    set(text) {
      key = text;
      try { sessionStorage.setItem(KEY, text); } catch { /* asked for again after a reload */ }
    },
    forget() {
      key = '';
      try { sessionStorage.removeItem(KEY); } catch { /* there was none */ }
    },
  };
})();

/* status 0: the server could not be reached, or was lost. */
class ApiError extends Error {
  constructor(message, { status = 0, param = null, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { status, param, retryAfter });
  }
}

function errorOf(document, status, retryAfter) {
  const error = document && document.error;
  const message = error && typeof error.message === 'string' ? error.message : `The server answered ${status}.`;
  return new ApiError(message, { status, param: error?.param, retryAfter });
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (keys.get()) headers.Authorization = `Bearer ${keys.get()}`;
  let answer;
  try {
    answer = await fetch(path, { cache: 'no-store', credentials: 'same-origin', redirect: 'error', ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached.');
  }
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => null);
  throw errorOf(document, answer.status, Number(answer.headers.get('Retry-After')) || 0);
}

const getJson = async (path) => (await request(path)).json();
const getText = async (path) => (await request(path)).text();

/* The lines of a body, without their ends. */
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('The connection to the server was lost.');
    }
    if (part.done) return;
    const lines = (rest + part.value).split('\n');
    rest = lines.pop();
    yield* lines;
  }
}

/* Events of a chat's stream: {comment} or {frame}. It must end with [DONE]. */
async function* streamChat(body, signal) {
  const answer = await request('v1/chat/completions', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
    signal,
  });
  for await (const line of linesOf(answer.body)) {
    if (line.startsWith(':')) {
      yield { comment: line.slice(1).trim() };
    } else if (line === 'data: [DONE]') {
      return;
    } else if (line.startsWith('data:')) {
      let frame;
      try {
        frame = JSON.parse(line.slice(5));
      } catch {
        throw new ApiError('The server sent something that is not JSON.');
      }
      if (frame.error) throw errorOf(frame, 0, 0);
      yield { frame };
    }
  }
  throw new ApiError('The answer was cut off: the connection to the server ended.');
}

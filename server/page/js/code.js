/* code.js - a block of code: its language, a button that copies it, and colours that need no
 * grammar: comments, strings, numbers and the words that most languages share. */

const COLOUR_MAX = 30000;
const WORDS = new Set(('abstract and as assert async await bool boolean break byte case catch char class const '
  + 'constexpr continue def default defer del delete do double elif else end enum except export extends extern false '
  + 'final finally float fn for foreach from func function global go if impl implements import in include inline '
  + 'instanceof int interface is lambda let long match mod module mut namespace new nil none None not null nullptr or '
  + 'package pass private protected pub public raise range return select self short signed sizeof static string struct '
  + 'super switch template then this throw throws trait true True False try type typedef typeof undefined union unless '
  + 'unsigned until use using var virtual void volatile when where while with yield '
  + 'SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE JOIN GROUP ORDER BY VALUES INTO SET AND OR NOT NULL AS ON '
  + 'LIMIT').split(' '));
const HASH_COMMENTS =
  /^(py|python|sh|bash|shell|zsh|console|rb|ruby|yaml|yml|toml|r|perl|make|makefile|dockerfile|meson|ini|conf)$/i;
const DASH_COMMENTS = /^(sql|lua|haskell|hs|ada)$/i;
const PLAIN = /^(|text|txt|plain|markdown|md|output|log|diff)$/i;

/* Each alternative ends within its line or is found by its first characters: the time is linear. */
function tokenRule(language) {
  const comment = HASH_COMMENTS.test(language) ? '#[^\\n]*' : DASH_COMMENTS.test(language) ? '--[^\\n]*'
    : '\\/\\/[^\\n]*|\\/\\*[^*]*(?:\\*(?!\\/)[^*]*)*(?:\\*\\/)?';
  const string = '"(?:[^"\\\\\\n]|\\\\.)*"?|\'(?:[^\'\\\\\\n]|\\\\.)*\'?|`(?:[^`\\\\]|\\\\.)*`?';
  return new RegExp(`(${comment})|(${string})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)(\\s?\\()?`, 'g');
}

function colour(node, text, language) {
  if (PLAIN.test(language) || text.length > COLOUR_MAX) return;
  const parts = [];
  let done = 0;
  const put = (from, to, kind) => {
    if (from > done) parts.push(text.slice(done, from));
    parts.push(h('span', { className: kind, text: text.slice(from, to) }));
    done = to;
  };
  for (const found of text.matchAll(tokenRule(language))) {
    const [all, comment, string, digits, word, call] = found;
    const end = found.index + all.length;
    if (comment) put(found.index, end, 'c-comment');
    else if (string) put(found.index, end, 'c-string');
    else if (digits) put(found.index, end, 'c-number');
    else if (WORDS.has(word)) put(found.index, found.index + word.length, 'c-word');
    else if (call) put(found.index, found.index + word.length, 'c-call');
  }
  parts.push(text.slice(done));
  node.replaceChildren(...parts);
}

/* Lines of a block that grows come in pieces, each laid out by itself. */
const PIECE_MAX = 2000;

function putPieces(code, text) {
  for (let from = 0; from < text.length;) {
    const last = code.lastChild;
    const isFull = !last || (last.textContent.length >= PIECE_MAX && last.textContent.endsWith('\n'));
    if (isFull) code.append(h('span', { className: 'piece' }, ''));
    const room = Math.max(1, PIECE_MAX - code.lastChild.textContent.length);
    const end = text.indexOf('\n', from + room - 1);
    const to = end < 0 ? text.length : end + 1;
    code.lastChild.append(text.slice(from, to));
    from = to;
  }
}

/* {node, grow(text), finish()}: while the block is open, only what is new is added. One that is
 * finished may grow all the same. */
function codeBlock(language, text) {
  const code = h('code');
  putPieces(code, text);
  const copy = iconButton('copy', 'Copy this code', () => copyText(code.textContent, copy));
  const label = language.slice(0, 24);
  let isFinished = false;
  const node = h('div', { className: 'code' },
    h('div', { className: 'code-head' }, h('span', { text: label || 'text' }), copy),
    h('pre', { tabindex: '0', role: 'region', 'aria-label': label ? `Code, ${label}` : 'Code' }, code));
  return {
    node,
    grow(longer) {
      const isMore = !isFinished && longer.startsWith(text);
      if (!isMore) code.replaceChildren();
      putPieces(code, isMore ? longer.slice(text.length) : longer);
      isFinished = false;
      text = longer;
    },
    finish() {
      isFinished = true;
      colour(code, text, language);
    },
  };
}

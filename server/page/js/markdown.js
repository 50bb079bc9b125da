/* markdown.js - what a model writes, as elements. The text is taken for hostile: HTML in it is text,
 * links lead to http, https and mailto only and say where, pictures are links, nothing is fetched,
 * and depth, columns and rows at once have bounds. Every search that fails is remembered, so that
 * the time is linear in the text, whatever is in it.
 *
 * While an answer grows, blocks that are complete stay as they are; only the last is made again. */

const DEPTH_MAX = 8;
const INLINE_DEPTH_MAX = 6;
const INLINE_MAX = 50000;
const COLUMNS_MAX = 64;
const ROWS_STEP = 200;
const LINK_MAX = 2000;

/* --- within a line ---------------------------------------------------------------------------- */

function safeUrl(text) {
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const link = (url, ...children) =>
  h('a', { href: url, title: url, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children);

const isSpace = (text, at) => at < 0 || at >= text.length || /\s/.test(text[at]);
const isWord = (text, at) => at >= 0 && at < text.length && /[\p{L}\p{N}_]/u.test(text[at]);

/* One run of inline text; `missing` has the closers that do not come any more. */
class Inline {
  constructor(text, into, depth) {
    this.text = text;
    this.into = into;
    this.depth = depth;
    this.missing = new Set();
    this.plain = '';
  }

  flush() {
    if (this.plain) this.into.append(this.plain);
    this.plain = '';
  }

  put(node) {
    this.flush();
    this.into.append(node);
  }

  nested(tag, from, to) {
    const node = h(tag);
    inline(this.text.slice(from, to), node, this.depth + 1);
    this.put(node);
  }

  /* The next `mark` that may close what was opened before `from`. */
  closer(mark, from) {
    if (this.missing.has(mark)) return -1;
    for (let at = this.text.indexOf(mark, from); at >= 0; at = this.text.indexOf(mark, at + 1)) {
      const end = at + mark.length;
      const alone = mark !== '*' || (this.text[end] !== '*' && this.text[at - 1] !== '*');
      const outside = mark[0] !== '_' || !isWord(this.text, end);
      if (at > from && !isSpace(this.text, at - 1) && alone && outside) return at;
    }
    this.missing.add(mark);
    return -1;
  }

  emphasis(at) {
    const { text } = this;
    const sign = text[at];
    if (sign === '_' && isWord(text, at - 1)) return 0;
    for (const [mark, tag] of [[sign + sign, 'strong'], [sign, 'em']]) {
      if (!text.startsWith(mark, at) || isSpace(text, at + mark.length)) continue;
      let end = this.closer(mark, at + mark.length);
      if (end < 0) continue;
      /* Of "***both***" the outer pair closes last. */
      if (mark.length === 2 && text[at + 2] === sign && text[end + 2] === sign) end++;
      this.nested(tag, at + mark.length, end);
      return end + mark.length;
    }
    return 0;
  }

  struck(at) {
    if (!this.text.startsWith('~~', at) || isSpace(this.text, at + 2)) return 0;
    const end = this.closer('~~', at + 2);
    if (end < 0) return 0;
    this.nested('del', at + 2, end);
    return end + 2;
  }

  code(at) {
    const { text } = this;
    let length = 1;
    while (text[at + length] === '`') length++;
    const mark = '`'.repeat(length);
    if (!this.missing.has(mark)) {
      for (let end = text.indexOf(mark, at + length); end >= 0;) {
        let run = length;
        while (text[end + run] === '`') run++;
        if (run === length) {
          const inside = text.slice(at + length, end);
          const padded = inside[0] === ' ' && inside.at(-1) === ' ' && !isBlank(inside);
          this.put(h('code', { text: padded ? inside.slice(1, -1) : inside }));
          return end + length;
        }
        end = text.indexOf(mark, end + run);
      }
      this.missing.add(mark);
    }
    this.plain += mark;
    return at + length;
  }

  /* [label](address), the label without brackets of its own; with ! before it: a picture. */
  bracket(at) {
    const { text } = this;
    const rest = /[[\]]/g;
    rest.lastIndex = at + 1;
    const found = rest.exec(text);
    if (!found || found[0] === '[' || text[found.index + 1] !== '(') return 0;
    const from = found.index + 2;
    const limit = Math.min(text.length, from + LINK_MAX);
    let open = 1;
    let end = from;
    for (; end < limit && open > 0; end++) {
      if (text[end] === '(') open++;
      else if (text[end] === ')') open--;
      else if (text[end] === '\n') return 0;
    }
    if (open > 0) return 0;
    const url = safeUrl(text.slice(from, end - 1).trim().replace(/^<(.*)>$/, '$1').split(/\s/, 1)[0]);
    const label = text.slice(at + 1, found.index);
    if (!url) return 0;
    const node = link(url);
    inline(label || url, node, INLINE_DEPTH_MAX - 1);
    this.put(node);
    return end;
  }

  address(at) {
    const rule = /https?:\/\/[^\s<>"`*|]{1,2000}/y;
    rule.lastIndex = at;
    const found = rule.exec(this.text);
    if (!found || isWord(this.text, at - 1)) return 0;
    let shown = found[0].replace(/[.,;:!?'\]]+$/, '');
    if (shown.endsWith(')') && !shown.includes('(')) shown = shown.slice(0, -1);
    const url = safeUrl(shown);
    if (!url) return 0;
    this.put(link(url, shown));
    return at + shown.length;
  }

  special(at) {
    const { text } = this;
    switch (text[at]) {
      case '\n':
        this.plain = this.plain.trimEnd();
        this.put(h('br'));
        return at + 1;
      case '\\':
        if (!/[!-/:-@[-`{-~]/.test(text[at + 1] || '')) return 0;
        this.plain += text[at + 1];
        return at + 2;
      case '`': return this.code(at);
      case '*':
      case '_': return this.emphasis(at);
      case '~': return this.struck(at);
      case '!': return text[at + 1] === '[' ? this.bracket(at + 1) : 0;
      case '[': return this.bracket(at);
      default: return this.address(at);
    }
  }

  run() {
    const { text } = this;
    const rule = /[\\`*_~[!\n]|https?:\/\//g;
    let at = 0;
    while (at < text.length) {
      rule.lastIndex = at;
      const found = rule.exec(text);
      if (!found) break;
      this.plain += text.slice(at, found.index);
      at = this.special(found.index);
      if (at > 0) continue;
      this.plain += text[found.index];
      at = found.index + 1;
    }
    this.plain += text.slice(at);
    this.flush();
  }
}

function inline(text, into, depth = 0) {
  if (depth >= INLINE_DEPTH_MAX || text.length > INLINE_MAX) into.append(text);
  else new Inline(text, into, depth).run();
}

/* --- lines ------------------------------------------------------------------------------------ */

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( {0,6})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const QUOTE = /^ {0,3}> ?/;
const isBlank = (line) => line.trim() === '';
const indentOf = (line) => line.length - line.trimStart().length;

function cellsOf(line) {
  const cells = [];
  let cell = '';
  let inCode = false;
  const row = line.trim();
  for (let i = row[0] === '|' ? 1 : 0; i < row.length; i++) {
    if (row[i] === '\\' && row[i + 1] === '|') cell += row[++i];
    else if (row[i] === '|' && !inCode) {
      cells.push(cell.trim());
      cell = '';
    } else {
      if (row[i] === '`') inCode = !inCode;
      cell += row[i];
    }
  }
  if (cell.trim() || row.at(-1) !== '|') cells.push(cell.trim());
  return cells;
}

function isTable(lines, i) {
  const head = lines[i];
  const rule = lines[i + 1];
  if (!head.includes('|') || rule === undefined || !rule.includes('-') || !/^[\s|:-]+$/.test(rule)) return false;
  const columns = cellsOf(rule);
  return columns.every((cell) => /^:?-+:?$/.test(cell)) && columns.length <= COLUMNS_MAX
    && cellsOf(head).length === columns.length;
}

/* What ends a paragraph. Of numbers only the first does: a year may begin a line. */
const startsBlock = (lines, i) =>
  FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i])
  || /^(?:1\D|\D)/.test(ITEM.exec(lines[i])?.[2] || '') || isTable(lines, i);

function endOfFence(lines, i, mark) {
  for (let j = i + 1; j < lines.length; j++) {
    const found = FENCE.exec(lines[j]);
    if (found && found[1][0] === mark[0] && found[1].length >= mark.length && isBlank(lines[j].slice(found[0].length))
      && !found[2]) return j;
  }
  return lines.length;
}

const isOrdered = (item) => /\d/.test(ITEM.exec(item)[2]);

/* Items, and whatever is indented below them. */
function endOfList(lines, i, ordered) {
  let j = i + 1;
  for (; j < lines.length; j++) {
    if (isBlank(lines[j])) {
      const next = lines[j + 1];
      if (next === undefined || isBlank(next)) break;
      const item = ITEM.exec(next);
      if (indentOf(next) < 2 && (!item || /\d/.test(item[2]) !== ordered)) break;
    } else if (indentOf(lines[j]) < 2) {
      const item = ITEM.exec(lines[j]);
      if (item ? /\d/.test(item[2]) !== ordered || RULE.test(lines[j]) : startsBlock(lines, j)) break;
    }
  }
  return j;
}

/* {kind, from, to} of the block at or after line i; null: only blank lines are left. `list`: whose next
 * item is there. */
function nextBlock(lines, i, list) {
  while (i < lines.length && isBlank(lines[i])) i++;
  if (i === lines.length) return null;
  if (list) return { kind: 'list', from: i, to: endOfList(lines, i, list.ordered) };
  const line = lines[i];
  const fence = FENCE.exec(line);
  if (fence) {
    const end = endOfFence(lines, i, fence[1]);
    return { kind: 'code', from: i, to: Math.min(end + 1, lines.length), bodyTo: end, language: fence[2] };
  }
  if (HEADING.test(line)) return { kind: 'heading', from: i, to: i + 1 };
  if (RULE.test(line)) return { kind: 'rule', from: i, to: i + 1 };
  let j = i + 1;
  if (QUOTE.test(line)) {
    while (j < lines.length && QUOTE.test(lines[j])) j++;
    return { kind: 'quote', from: i, to: j };
  }
  if (ITEM.test(line)) return { kind: 'list', from: i, to: endOfList(lines, i, isOrdered(line)) };
  if (isTable(lines, i)) {
    for (j = i + 2; j < lines.length && !isBlank(lines[j]) && lines[j].includes('|');) j++;
    return { kind: 'table', from: i, to: j };
  }
  while (j < lines.length && !isBlank(lines[j]) && !startsBlock(lines, j)) j++;
  return { kind: 'text', from: i, to: j };
}

/* --- blocks ----------------------------------------------------------------------------------- */

function tableRow(line, tag, sides) {
  const cells = cellsOf(line);
  return h('tr', {}, ...sides.map((side, i) => {
    const cell = h(tag, { className: side, scope: tag === 'th' ? 'col' : null });
    inline(cells[i] || '', cell);
    return cell;
  }));
}

/* The first rows; a button brings more. */
function makeTable(lines) {
  const sides = cellsOf(lines[1]).map((rule) =>
    (rule.endsWith(':') ? (rule.startsWith(':') ? 'mid' : 'end') : null));
  const body = h('tbody');
  const wrap = h('div', { className: 'table-scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, tableRow(lines[0], 'th', sides)), body));
  let shown = 2;
  const more = h('button', { type: 'button', className: 'more', onclick: () => add() });
  function add() {
    const to = Math.min(lines.length, shown + ROWS_STEP);
    body.append(...lines.slice(shown, to).map((line) => tableRow(line, 'td', sides)));
    shown = to;
    more.textContent = `Show more of ${count(lines.length - shown)} other rows`;
    more.hidden = shown === lines.length;
  }
  add();
  return h('div', {}, wrap, more);
}

function makeItem(lines, depth) {
  const width = ITEM.exec(lines[0])[0].length;
  const first = lines[0].slice(width).replace(/^\[[ xX]\] /, (box) => (box[1] === ' ' ? '☐ ' : '☑ '));
  const node = h('li');
  const rest = lines.slice(1).map((line) => line.slice(Math.min(indentOf(line), width)));
  makeBlocks([first, ...rest], node, depth + 1, true);
  return node;
}

/* Where the items of a list begin, in lines; `base`: the indent of its first. */
function itemStarts(lines, base) {
  const starts = [];
  lines.forEach((line, i) => { if (indentOf(line) < base + 2 && ITEM.test(line)) starts.push(i); });
  return starts;
}

function emptyList(line) {
  const sign = ITEM.exec(line)[2];
  const start = parseInt(sign, 10);
  return h(/\d/.test(sign) ? 'ol' : 'ul', start >= 0 && start !== 1 ? { start } : {});
}

function makeItems(lines, depth, base = indentOf(lines[0])) {
  const starts = itemStarts(lines, base);
  return starts.map((start, i) => makeItem(lines.slice(start, starts[i + 1]), depth));
}

function makeList(lines, depth) {
  const list = emptyList(lines[0]);
  list.append(...makeItems(lines, depth));
  return list;
}

function makeHeading(line) {
  const level = HEADING.exec(line)[1].length;
  let text = line.trim().slice(level).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === '#') end--;
  if (end === 0 || text[end - 1] === ' ') text = text.slice(0, end).trim();
  /* The page's title has the level above. */
  const node = h(`h${Math.min(6, level + 1)}`, { className: `level-${level}` });
  inline(text, node);
  return node;
}

function makeQuote(lines, depth) {
  const node = h('blockquote');
  makeBlocks(lines.map((line) => line.replace(QUOTE, '')), node, depth + 1);
  return node;
}

function makeBlock(lines, block, depth, tight) {
  const own = lines.slice(block.from, block.to);
  switch (block.kind) {
    case 'code': {
      const code = codeBlock(block.language, lines.slice(block.from + 1, block.bodyTo).join('\n'));
      code.finish();
      return code.node;
    }
    case 'heading': return makeHeading(own[0]);
    case 'rule': return h('hr');
    case 'table': return makeTable(own);
    case 'list':
    case 'quote':
      if (depth < DEPTH_MAX) return block.kind === 'list' ? makeList(own, depth) : makeQuote(own, depth);
      return h('p', { text: own.join('\n') });
    default: {
      const node = tight ? document.createDocumentFragment() : h('p');
      inline(own.map((line) => line.trimStart()).join('\n'), node);
      return node;
    }
  }
}

/* `tight`: a first paragraph needs no element of its own. */
function makeBlocks(lines, into, depth = 0, tight = false) {
  for (let block, i = 0; (block = nextBlock(lines, i)); i = block.to)
    into.append(makeBlock(lines, block, depth, tight && block.from === 0));
}

/* Markdown that grows: update(text) with longer and longer texts, then finish(text). A block is
 * complete when the next one's first line is. */
class Markdown {
  constructor(into) {
    this.into = into;
    this.settled = 0; /* characters whose blocks are complete */
    this.open = [];   /* nodes of the others, at most two */
    this.code = null; /* what makes the open block grow, if it is code */
    this.list = null; /* {node, base, ordered} of the open block, if it is a list of which items are complete */
  }

  update(text) {
    const lines = text.slice(this.settled).split('\n');
    let block = nextBlock(lines, 0, this.list);
    let next = null;
    let line = 0;
    while (block && (next = nextBlock(lines, block.to)) && next.from < lines.length - 1) {
      this.showOpen(lines, block);
      this.open = [];
      this.code = this.list = null;
      for (; line < next.from; line++) this.settled += lines[line].length + 1;
      block = next;
    }
    if (block && block.kind === 'code' && !next) this.growCode(lines, block);
    else if (block && block.kind === 'list' && !next) this.growList(lines, block, line);
    else if (block) this.showOpen(lines, block, next);
  }

  /* The open block, and a next one that is not certain yet. */
  showOpen(lines, block, next) {
    const after = next ? [makeBlock(lines, next, 0, false)] : [];
    if (this.list) {
      const items = makeItems(lines.slice(block.from, block.to), 0, this.list.base);
      this.list.node.append(...items);
      this.replaceOpen([...items, ...after]);
    } else {
      this.replaceOpen([makeBlock(lines, block, 0, false), ...after]);
    }
  }

  /* Items that another one follows are complete. */
  growList(lines, block, line) {
    const own = lines.slice(block.from, block.to);
    const base = this.list ? this.list.base : indentOf(own[0]);
    const starts = itemStarts(own, base);
    const last = starts.findLast((start) => block.from + start < lines.length - 1) || 0;
    if (last > 0) {
      const list = this.list || { node: emptyList(own[0]), base, ordered: isOrdered(own[0]) };
      const items = makeItems(own.slice(0, last), 0, base);
      this.replaceOpen(this.list ? [] : [list.node]);
      list.node.append(...items);
      this.open = [];
      this.list = list;
      for (; line < block.from + last; line++) this.settled += lines[line].length + 1;
    }
    this.showOpen(lines, { ...block, from: block.from + last });
  }

  growCode(lines, block) {
    const text = lines.slice(block.from + 1, block.bodyTo).join('\n');
    if (this.code && this.code.language === block.language) {
      this.code.grow(text);
      return;
    }
    const made = codeBlock(block.language, text);
    this.replaceOpen([made.node]);
    this.code = { ...made, language: block.language };
  }

  replaceOpen(nodes) {
    for (const node of this.open) if (!nodes.includes(node)) node.remove();
    for (const node of nodes) if (!node.parentNode) this.into.append(node);
    this.open = nodes;
    this.code = null;
  }

  finish(text) {
    this.update(text);
    if (this.code) this.code.finish();
  }
}

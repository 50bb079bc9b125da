/* dom.js - elements, numbers as text, and what is told to screen readers. No string ever becomes
 * markup: text is text, and the policy of the document forbids everything else. */

const SVG = 'http://www.w3.org/2000/svg';
const byId = (id) => document.getElementById(id);

function setAll(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name === 'className' ? 'class' : name, value === true ? '' : value);
  }
}

function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  setAll(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setAll(node, attributes);
  node.append(...children);
  return node;
}

const icon = (name) => svg('svg', { 'aria-hidden': 'true' }, svg('use', { href: `#i-${name}` }));

const iconButton = (name, label, onclick) =>
  h('button', { type: 'button', className: 'icon', 'aria-label': label, title: label, onclick }, icon(name));

/* Said once, when nothing else is being said. */
function announce(text) {
  byId('status').textContent = '';
  requestAnimationFrame(() => { byId('status').textContent = text; });
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const count = (value) => whole.format(value);

/* Three digits that do not change width much; "–" where there is nothing to say. */
function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  return Math.abs(value) >= 1000 ? whole.format(value) : three.format(value);
}

function scaled(value, step, units) {
  let unit = 0;
  while (Math.abs(value) >= step * 0.9995 && unit < units.length - 1) {
    value /= step;
    unit++;
  }
  return `${number(value)} ${units[unit]}`;
}

const bytes = (value) =>
  Number.isFinite(value) ? scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']) : '–';

function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value < 0.001) return `${number(value * 1e6)} µs`;
  return value < 1 ? `${number(value * 1000)} ms` : `${number(value)} s`;
}

const percent = (value) => (Number.isFinite(value) ? `${number(value * 100)} %` : '–');

function ago(ms) {
  /* Of a day that has 23 or 25 hours, too. */
  const days = Math.round((startOfDay(Date.now()) - startOfDay(ms)) / 86400000);
  if (days <= 0) return 'Today';
  if (days === 1) return 'Yesterday';
  if (days < 7) return 'Last seven days';
  return 'Earlier';
}

const startOfDay = (ms) => new Date(ms).setHours(0, 0, 0, 0);

/* Ask before something is lost. */
function confirmLoss(title, text, verb) {
  const dialog = byId('ask-dialog');
  byId('ask-title').textContent = title;
  byId('ask-text').textContent = text;
  byId('ask-yes').textContent = verb;
  dialog.returnValue = 'no';
  dialog.showModal();
  byId('ask-no').focus();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
  });
}

/* Without TLS on another machine's address there is no clipboard to write to. False: nor is this way. */
function copySelected(text) {
  const focused = document.activeElement;
  const area = h('textarea', { className: 'hidden', 'aria-hidden': 'true' });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  focused?.focus({ preventScroll: true });
  return copied;
}

async function copyText(text, button) {
  const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (!copied && !copySelected(text)) {
    announce('Not copied: the browser does not allow it');
    return;
  }
  const use = button.querySelector('use');
  use.setAttribute('href', '#i-done');
  setTimeout(() => use.setAttribute('href', '#i-copy'), 1200);
  announce('Copied');
}

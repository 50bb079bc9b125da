/* message.js - one message as an element: what was said, what it cost, what can be done with it. */

const COST_ROWS = [
  ['policy', 'KV policy', String],
  ['device_bytes', 'Device memory', bytes],
  ['host_bytes', 'Host memory', bytes],
  ['kept_tokens', 'Tokens kept', count],
  ['evicted_tokens', 'Tokens dropped for good', count],
  ['fetched_bytes', 'Fetched from host', bytes],
  ['prefetch_hit_rate', 'Chosen rows already there', percent],
  ['speculative_tokens', 'Speculative tokens', count],
  ['speculative_tokens_matched', 'of them right', count],
  ['preemptions', 'Preemptions', count],
];

const ENDS = { length: 'token limit reached', stop: '', stopped: 'stopped', interrupted: 'interrupted',
  unfinished: 'not complete' };

/* Enter that sends; what ends a composition has the code 229 in Safari. */
const isSending = (event) =>
  event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.keyCode !== 229;

/* "prefill 4096/32768" of a keep-alive, for people. */
function progressText(comment) {
  const found = /(\w+)(?: (\d+)\/(\d+))?$/.exec(comment);
  if (!found) return 'Waiting';
  if (found[2]) return `Reading the prompt: ${count(+found[2])} of ${count(+found[3])} tokens`;
  return found[1] === 'alive' ? 'Waiting' : `In ${found[1]}`;
}

function statsText(meta) {
  const parts = [];
  if (meta.tokens) parts.push(`${count(meta.tokens)} ${meta.tokens === 1 ? 'token' : 'tokens'}`);
  if (meta.rate) parts.push(`${number(meta.rate)}/s`);
  if (meta.first) parts.push(`first after ${seconds(meta.first)}`);
  if (ENDS[meta.end]) parts.push(ENDS[meta.end]);
  return parts.join(' · ');
}

function costRows(meta) {
  const rows = [];
  if (meta.prompt) rows.push(['Prompt', `${count(meta.prompt)} tokens`]);
  if (meta.cached) rows.push(['From the prefix cache', `${count(meta.cached)} tokens`]);
  if (meta.first) rows.push(['First token', seconds(meta.first)]);
  if (meta.between) rows.push(['Mean between tokens', seconds(meta.between)]);
  for (const [name, label, text] of COST_ROWS) {
    const value = meta.kv?.[name];
    const isNothing = value === undefined || value === null || (value === 0 && !name.endsWith('bytes'));
    if (!isNothing) rows.push([label, text(value)]);
  }
  return rows;
}

/* The cost, folded up. */
function costNode(meta) {
  const rows = costRows(meta);
  if (rows.length === 0) return h('span', { className: 'stats', text: statsText(meta) });
  const policy = meta.kv ? `${meta.kv.policy} · ${bytes(meta.kv.device_bytes)} device · ` : '';
  return h('details', { className: 'cost' },
    h('summary', { className: 'stats', text: policy + statsText(meta) }),
    h('dl', {}, ...rows.map(([label, text]) => h('div', {}, h('dt', { text: label }), h('dd', { text })))));
}

class MessageView {
  /* actions: {edit, again}: functions of this view. */
  constructor(message, actions, name) {
    this.message = message;
    this.actions = actions;
    this.field = null; /* while it is edited */
    this.body = h('div', { className: 'body', dir: 'auto' });
    this.foot = h('div', { className: 'message-foot' });
    const isUser = message.role === 'user';
    this.node = h('article', { className: `message ${message.role}`, 'aria-label': isUser ? 'You' : name },
      h('div', { className: 'who', 'aria-hidden': 'true', text: isUser ? 'You' : name }), this.body, this.foot);
    if (isUser) this.body.textContent = message.content;
    else this.markdown = new Markdown(this.body);
    this.settle();
  }

  /* While the answer comes. What is below it is not seen, so that nothing moves. */
  grow() {
    this.node.classList.add('streaming');
    this.think();
    this.markdown.update(this.message.content);
  }

  /* What came before the answer, folded up once there is one. */
  think() {
    const { thoughts, content } = this.message;
    if (!thoughts) return;
    if (!this.thoughts) {
      this.thoughts = h('details', { className: 'thoughts', open: content === '' },
        h('summary', { className: 'stats', text: 'Thoughts' }), h('p', { dir: 'auto' }));
      this.body.before(this.thoughts);
    }
    this.thoughts.lastChild.textContent = thoughts;
    if (content !== '' && !this.answered) {
      this.answered = true;
      this.thoughts.open = false;
    }
  }

  /* It is complete, or as complete as it gets. */
  settle() {
    const { message, actions } = this;
    const tools = h('div', { className: 'tools' });
    this.node.classList.remove('streaming');
    this.think();
    if (message.content) {
      const copy = iconButton('copy', 'Copy', () => copyText(message.content, copy));
      tools.append(copy);
    }
    if (message.role === 'user') {
      tools.append(iconButton('edit', 'Edit and send again', () => actions.edit(this)));
      this.foot.replaceChildren(tools);
      return;
    }
    this.markdown.finish(message.content);
    tools.append(iconButton('again', 'Answer again', () => actions.again(this)));
    const left = message.meta ? costNode(message.meta) : h('span', { className: 'stats' });
    this.foot.replaceChildren(left, tools);
    this.failure?.remove();
    if (message.error) {
      this.failure = h('div', { className: 'failure' },
        h('p', { text: message.error.message }),
        h('button', { type: 'button', text: 'Try again', onclick: () => actions.again(this) }));
      this.foot.before(this.failure);
    }
  }

  /* The same answer, of which another tab has more. What stands stays: somebody may read it, or select it. */
  become(message) {
    const before = this.message;
    const isLonger = before.content !== '' && JSON.stringify(before.meta) === JSON.stringify(message.meta)
      && !before.error && !message.error;
    Object.assign(before, message);
    if (isLonger) {
      this.think();
      this.markdown.finish(before.content);
      return;
    }
    const at = this.foot.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
    this.settle();
    if (at) this.foot.querySelector(`[aria-label="${at}"]`)?.focus({ preventScroll: true });
  }

  /* The text in a field; done(text) with the new one, or null. */
  edit(done) {
    if (this.field) {
      this.field.focus();
      return;
    }
    const field = h('textarea', { 'aria-label': 'Edit the message', rows: 2 });
    field.value = this.message.content;
    this.field = field;
    const finish = (text) => {
      this.field = null;
      form.replaceWith(this.body);
      this.foot.hidden = false;
      done(text);
    };
    const form = h('form', { className: 'editor', onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) finish(field.value.trim());
    } }, field, h('div', { className: 'row' },
      h('span', { className: 'help', text: 'What follows is answered anew.' }), h('span', { className: 'grow' }),
      h('button', { type: 'button', text: 'Cancel', onclick: () => finish(null) }),
      h('button', { type: 'submit', className: 'primary', text: 'Send' })));
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        finish(null);
      } else if (isSending(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.body.replaceWith(form);
    this.foot.hidden = true;
    fitHeight(field);
    field.addEventListener('input', () => fitHeight(field));
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

/* Where the browser does not do it by itself (field-sizing). */
function fitHeight(field) {
  if (CSS.supports('field-sizing', 'content')) return;
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight + 2}px`;
}

/* settings.js - what a conversation asks for beyond its messages: sampling, and the KV policy with
 * its settings, as the server lists them. An empty field is the server's default and is not sent. */

const SAMPLING = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, help: '0: always the most probable token' },
  { name: 'top_p', label: 'Top p', min: 0, max: 1, step: 0.01 },
  { name: 'top_k', label: 'Top k', min: 0, max: 100000, step: 1, help: '0: off' },
  { name: 'max_tokens', label: 'Longest answer', min: 1, max: 16777216, step: 1, unit: 'tokens', help: 'tokens' },
  { name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01 },
  { name: 'seed', label: 'Seed', min: 0, max: 9007199254740991, step: 1 },
  { name: 'repetition_penalty', label: 'Repetition penalty', min: 0.01, max: 10, step: 0.01 },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1 },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1 },
];

const POLICY_HELP = {
  full: 'All of the cache in device memory.',
  offload: 'The cache in host memory; the same answers as full.',
  kivi: 'A low-bit copy in device memory; approximates.',
  specache: 'The low-bit copy, and chosen rows fetched in 16 bits; approximates.',
  infinigen: 'Partial keys, by which each layer\'s rows are chosen and fetched ahead; approximates.',
  streaming: 'First and newest tokens only; the rest is dropped.',
  h2o: 'The tokens attended to most, and the newest; the rest is dropped.',
  'q-hitter': 'What h2o keeps, in few bits; the rest is dropped.',
};

/* What goes into the request's body. */
function requestFields(settings) {
  const fields = { kv: { ...(settings.kv || {}), report: true } };
  for (const { name } of SAMPLING) if (settings[name] !== undefined) fields[name] = settings[name];
  if (settings.stop) fields.stop = settings.stop;
  return fields;
}

const policyOf = (settings, model) => settings.kv?.policy || model?.kv_policy || '';

/* One line: the policy, and what differs from the defaults. */
function settingsSummary(settings, model) {
  const policy = policyOf(settings, model);
  const parts = [policy ? `KV ${policy}` : 'KV default'];
  const kv = Object.entries(settings.kv || {}).filter(([name]) => name !== 'policy');
  for (const [name, value] of kv) parts.push(value === true ? name : `${name} ${value}`);
  for (const { name, label } of SAMPLING)
    if (settings[name] !== undefined) parts.push(`${label.toLowerCase()} ${settings[name]}`);
  if (settings.system) parts.push('system prompt');
  return parts.join(' · ');
}

/* What was typed into a field means what a field of the same settings says, or is not in them. */
const isTypedAs = ({ type, value, ariaInvalid }, fresh) => value.trim() === fresh.value.trim()
  || (type === 'number' && value !== '' && fresh.value !== '' && Number(value) === Number(fresh.value))
  || (ariaInvalid === 'true' && fresh.value === '');

/* The form. onchange(settings) is called with what is valid; what is not valid is not in them. */
class SettingsForm {
  constructor(form, onchange) {
    this.form = form;
    this.onchange = onchange;
    this.settings = {};
    this.policies = [];
    this.model = null;
    form.addEventListener('submit', (event) => event.preventDefault());
  }

  show(settings) {
    this.settings = settings;
    this.build();
  }

  /* Of the same conversation, changed by somebody else. */
  update(settings) {
    this.settings = settings;
    this.rebuild(() => true);
  }

  /* What the server has: once it is known, and again when it changes. */
  offer(model, policies) {
    if (JSON.stringify([model, policies]) === JSON.stringify([this.model, this.policies])) return;
    this.model = model;
    this.policies = policies;
    this.rebuild(({ id }) => !id.startsWith('f-kv-'));
  }

  /* Under somebody's hands: the focus stays where it is, and what means the same as it was typed, or
   * is not finished. `canStay`: the rules of a field are what they were. */
  rebuild(canStay) {
    const at = this.form.contains(document.activeElement) ? document.activeElement : null;
    const alike = () => [...this.form.querySelectorAll(at.tagName)];
    const place = at && alike().indexOf(at);
    const typed = [...this.form.querySelectorAll('input:not([type=checkbox]), textarea')]
      .filter((control) => control === at || control.ariaInvalid === 'true');
    this.build();
    for (const control of typed.filter(canStay)) {
      const fresh = byId(control.id);
      if (fresh && isTypedAs(control, fresh)) fresh.closest('.field').replaceWith(control.closest('.field'));
    }
    if (at) (byId(at.id) || alike()[place])?.focus({ preventScroll: true });
  }

  set(group, name, value) {
    const target = group ? { ...(this.settings[group] || {}) } : this.settings;
    if (value === undefined) delete target[name];
    else target[name] = value;
    if (group && Object.keys(target).length > 0) this.settings[group] = target;
    else if (group) delete this.settings[group];
    this.onchange(this.settings);
  }

  /* A field with its label, its hint and the place of its problem. */
  field(id, label, control, hint) {
    const help = this.help(id, control, hint);
    return h('div', { className: 'field' }, h('label', { for: id, text: label }), control, help);
  }

  /* What is changed is not what was refused: the mark goes. */
  help(id, control, hint = '') {
    control.id = id;
    control.setAttribute('aria-describedby', `${id}-hint`);
    control.addEventListener(control.matches('select, [type=checkbox]') ? 'change' : 'input',
      () => this.mark(control, null));
    return h('p', { className: 'help', id: `${id}-hint`, 'data-hint': hint, text: hint });
  }

  number(group, rule, placeholder, hint) {
    const value = (group ? this.settings[group] : this.settings)?.[rule.name];
    const input = h('input', { type: 'number', min: rule.min, max: rule.max, step: rule.step, placeholder,
      inputmode: Number.isInteger(rule.step) ? 'numeric' : 'decimal' });
    if (value !== undefined) input.value = value;
    const node = this.field(`f-${group ? `${group}-` : ''}${rule.name}`, rule.label, input, hint);
    input.addEventListener('input', () => {
      const ok = input.validity.valid || (input.validity.stepMismatch && !Number.isInteger(rule.step));
      const range = `${rule.min} to ${count(rule.max)}${rule.step > 1 ? `, a multiple of ${rule.step}` : ''}`;
      if (!ok) this.mark(input, range);
      this.set(group, rule.name, ok && input.value !== '' ? Number(input.value) : undefined);
    });
    return node;
  }

  /* onchange does not make the select anew: whoever types the name of a choice is still typing. */
  choice(id, label, values, chosen, placeholder, hint, onchange) {
    const select = h('select', {}, h('option', { value: '', text: placeholder }),
      ...values.map((value) => h('option', { value, text: value })));
    select.value = chosen === undefined ? '' : String(chosen);
    select.addEventListener('change', () => onchange(values.find((value) => String(value) === select.value)));
    return this.field(id, label, select, hint);
  }

  /* Say at the field what is wrong with it; null: nothing is. */
  mark(control, problem) {
    const place = byId(`${control.id}-hint`);
    if (problem === null) control.removeAttribute('aria-invalid');
    else control.setAttribute('aria-invalid', 'true');
    place.textContent = problem || place.dataset.hint;
    place.classList.toggle('problem', problem !== null);
  }

  /* The field that the server's name of a parameter means, if there is one. */
  fieldOf(param) {
    return param ? byId(`f-${String(param).replace('.', '-')}`) : null;
  }

  /* The server refused what is in a field. */
  refuse(field, message, takesFocus) {
    const closed = field.closest('details');
    if (closed) closed.open = true;
    this.mark(field, message);
    if (takesFocus) field.focus();
  }

  policySetting(setting) {
    const placeholder = `${setting.default}`;
    const hint = setting.help.replaceAll('`', '');
    const id = `f-kv-${setting.name}`;
    const chosen = this.settings.kv?.[setting.name];
    if (setting.values) {
      return this.choice(id, setting.name, setting.values, chosen, `${placeholder} (default)`, hint,
        (value) => this.set('kv', setting.name, value));
    }
    if (!setting.by_layer && !setting.percent) {
      const { name, min, max, multiple_of: step } = setting;
      const rule = { name, label: name, min, max, step };
      return this.number('kv', rule, placeholder, hint);
    }
    const rule = setting.percent
      ? { pattern: /^(\d+|\d{1,2}%|100%)?$/, says: 'tokens, or a share of the prompt: 10%' }
      : { pattern: /^(\d+(\+\d+@\d+(-\d+)?)*)?$/, says: 'rows, or rows with others by layer: 64+256@0-1' };
    const input = h('input', { type: 'text', placeholder, spellcheck: 'false', autocomplete: 'off' });
    if (chosen !== undefined) input.value = chosen;
    const node = this.field(id, setting.name, input, hint);
    input.addEventListener('input', () => {
      const text = input.value.trim();
      const ok = rule.pattern.test(text);
      if (!ok) this.mark(input, rule.says);
      this.set('kv', setting.name, !ok || text === '' ? undefined : /^\d+$/.test(text) ? Number(text) : text);
    });
    return node;
  }

  policyFields() {
    const names = this.policies.map((policy) => policy.name);
    const own = h('div');
    const hint = () => {
      const policy = this.policies.find((one) => one.name === policyOf(this.settings, this.model));
      return policy ? POLICY_HELP[policy.name] || (policy.exact ? 'Exact.' : 'Approximates.') : '';
    };
    const choice = this.choice('f-kv-policy', 'Policy', names, this.settings.kv?.policy,
      `${this.model?.kv_policy || 'the server’s'} (default)`, hint(), (value) => {
        /* Settings of another policy would be refused. */
        if (value) this.settings.kv = { policy: value };
        else delete this.settings.kv;
        this.onchange(this.settings);
        own.replaceChildren(...this.ownFields());
        byId('f-kv-policy-hint').dataset.hint = hint();
      });
    own.append(...this.ownFields());
    return [choice, own];
  }

  /* Of the policy that is chosen. */
  ownFields() {
    const policy = this.policies.find((one) => one.name === policyOf(this.settings, this.model));
    if (!policy || policy.settings.length === 0) return [];
    const paper = h('input', { type: 'checkbox' });
    const paperHelp = this.help('f-kv-paper', paper);
    paper.checked = this.settings.kv?.paper === true;
    paper.addEventListener('change', () => this.set('kv', 'paper', paper.checked ? true : undefined));
    const own = h('details', { className: 'more-settings', id: 'policy-settings' },
      h('summary', { text: `Settings of ${policy.name}` }),
      h('label', { className: 'check' }, paper, 'Start from the settings of the paper'), paperHelp,
      ...policy.settings.map((setting) => this.policySetting(setting)));
    own.open = this.policyOpen || Object.keys(this.settings.kv || {}).length > 1;
    own.addEventListener('toggle', () => { this.policyOpen = own.open; });
    return [own];
  }

  build() {
    const sampling = SAMPLING.map((rule) => this.number('', rule, rule.unit ? 'no limit' : 'default', rule.help));
    const stop = h('input', { type: 'text', placeholder: 'none', spellcheck: 'false', autocomplete: 'off' });
    stop.value = this.settings.stop || '';
    stop.addEventListener('input', () => this.set('', 'stop', stop.value || undefined));
    const system = h('textarea', { rows: 3, placeholder: 'none' });
    system.value = this.settings.system || '';
    system.addEventListener('input', () => this.set('', 'system', system.value.trim() ? system.value : undefined));
    const more = h('details', { className: 'more-settings' }, h('summary', { text: 'More sampling' }),
      ...sampling.slice(4), this.field('f-stop', 'Stop at', stop, 'a text that ends the answer'));
    more.open = this.moreOpen || SAMPLING.slice(4).some(({ name }) => this.settings[name] !== undefined);
    more.addEventListener('toggle', () => { this.moreOpen = more.open; });
    const reset = h('button', { type: 'button', text: 'Back to the server’s defaults', onclick: () => {
      for (const name of Object.keys(this.settings)) delete this.settings[name];
      this.onchange(this.settings);
      this.build();
      byId('f-kv-policy').focus();
    } });
    const top = this.form.scrollTop;
    this.form.replaceChildren(
      h('fieldset', {}, h('legend', { text: 'KV cache' }), ...this.policyFields()),
      h('fieldset', {}, h('legend', { text: 'Sampling' }),
        h('div', { className: 'pairs' }, ...sampling.slice(0, 4)), more),
      h('fieldset', {}, h('legend', { text: 'System prompt' }),
        this.field('f-system', 'Instructions', system, 'sent before the messages')),
      h('div', { id: 'costs', className: 'costs' }),
      reset);
    this.form.scrollTop = top;
    this.showCosts(this.costs || []);
  }

  /* What answers of this conversation cost, newest first. */
  showCosts(costs) {
    this.costs = costs;
    const place = byId('costs');
    if (!place || costs.length === 0) {
      place?.replaceChildren();
      return;
    }
    const row = (cost) => h('tr', {},
      h('th', { scope: 'row', text: cost.kv.policy }),
      h('td', { text: count(cost.tokens) }),
      h('td', { text: bytes(cost.kv.device_bytes) }),
      h('td', { text: bytes(cost.kv.host_bytes) }),
      h('td', { text: number(cost.rate) }));
    place.replaceChildren(h('h3', { text: 'What its answers cost' }),
      h('div', { className: 'table-scroll', tabindex: '0', role: 'region', 'aria-label': 'What its answers cost' },
        h('table', {}, h('thead', {}, h('tr', {}, ...['Policy', 'Tokens', 'Device', 'Host', 'Per s'].map((text) =>
          h('th', { scope: 'col', text })))),
        h('tbody', {}, ...costs.slice(0, 12).map(row)))));
  }
}

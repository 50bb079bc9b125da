/* live.js - what the server does now, from /metrics and the list of requests, every two seconds
 * while it is looked at. */

const SAMPLE_MS = 2000;
const SAMPLES_MAX = 91;  /* three minutes */
const WINDOW = 5;        /* samples over which rates and quantiles are taken */

const QUEUE_REASONS = { batch_full: 'a place in the batch', device_bytes: 'device memory', host_bytes: 'host memory',
  prefill: 'a place for its prompt', sibling: 'its prompt', key: 'its key’s share', new: 'a look at it' };

/* What is drawn: each a function of a sample and the one before the window. */
const CHARTS = [
  ['Requests', { text: number, series: [{ label: 'running', className: 's1' }, { label: 'waiting', className: 's2' }] },
    (now) => [now.value('requests_running'), waitingIn(now)]],
  ['Tokens per second', { text: number, series: [{ label: 'generated', className: 's1' }, { label: 'prompts', className: 's2' }] },
    (now, before) => [rate(now, before, 'generation_tokens_total'), rate(now, before, 'scheduler_prompt_tokens_total')]],
  ['Time to first token', { text: seconds, series: [{ label: 'median', className: 's1' }, { label: '95 %', className: 's2' }] },
    (now, before) => [0.5, 0.95].map((q) => quantile(now, before, 'time_to_first_token_seconds', q))],
  ['Between tokens', { text: seconds, series: [{ label: 'median', className: 's1' }, { label: '95 %', className: 's2' }] },
    (now, before) => [0.5, 0.95].map((q) => quantile(now, before, 'inter_token_latency_seconds', q))],
  ['Device tier', { text: bytes, isBytes: true, series: [{ label: 'used', className: 's1', area: true }, { label: 'of it prefix cache', className: 's2' }] },
    (now) => tierOf(now, 'device')],
  ['Host tier', { text: bytes, isBytes: true, series: [{ label: 'used', className: 's1', area: true }, { label: 'of it prefix cache', className: 's2' }] },
    (now) => tierOf(now, 'host')],
  ['Fetch hits', { text: percent, max: 1, note: 'Chosen rows that were on the device already.', series: [{ label: 'rows', className: 's1' }] },
    (now, before) => [share(now, before, 'fetch_rows_hit_total', ['fetch_rows_missed_total'])]],
  ['Copies between the tiers', { text: (value) => `${bytes(value)}/s`, isBytes: true, series: [{ label: 'to device', className: 's1' }, { label: 'to host', className: 's2' }] },
    (now, before) => [rate(now, before, 'fetched_bytes_total'), rate(now, before, 'offloaded_bytes_total')]],
];

const waitingIn = (now) => now.value('requests_waiting') + now.value('requests_suspended');
const tierOf = (now, tier) => [now.value('kv_bytes', { tier }), now.value('kv_cached_bytes', { tier })];

const TILES = [
  ['Running', (now) => count(now.value('requests_running'))],
  ['Waiting', (now) => count(waitingIn(now))],
  ['Tokens/s', (now, before) => number(rate(now, before, 'generation_tokens_total'))],
  ['First token', (now, before) => seconds(quantile(now, before, 'time_to_first_token_seconds', 0.5))],
  ['Between tokens', (now, before) => seconds(quantile(now, before, 'inter_token_latency_seconds', 0.5))],
  ['Device used', (now) => percent(now.value('kv_usage_ratio', { tier: 'device' }))],
  ['Host used', (now) => percent(now.value('kv_usage_ratio', { tier: 'host' }))],
  ['Prefix hits', (now) => {
    const looked = now.value('prefix_lookup_tokens_total');
    return looked > 0 ? percent(now.value('prefix_hit_tokens_total') / looked) : '–';
  }],
];

const live = (() => {
  let samples = [];
  let points = [];
  let charts = null;
  let tiles = null;
  let timer = 0;
  let shown = false;
  let failures = 0;
  let turn = 0;    /* of the loop that goes on; others end */

  function build() {
    charts = CHARTS.map(([title, options]) => new Chart(title, options));
    byId('charts').replaceChildren(...charts.map((chart) => chart.node));
    tiles = TILES.map(([label]) => {
      const value = h('dd', { text: '–' });
      byId('tiles').append(h('div', {}, h('dt', { text: label }), value));
      return value;
    });
  }

  function take(text) {
    const now = new Sample(text, performance.now());
    const last = samples.at(-1);
    /* A server that was started again counts from nothing. */
    if (last && now.value('start_time_seconds') !== last.value('start_time_seconds')) {
      samples = [];
      points = [];
    }
    samples.push(now);
    if (samples.length > WINDOW + 1) samples.shift();
    const before = samples[0];
    points.push(CHARTS.map(([, , values]) => values(now, before)));
    if (points.length > SAMPLES_MAX) points.shift();
    TILES.forEach(([, value], i) => { tiles[i].textContent = value(now, before); });
    charts.forEach((chart, i) => chart.draw(points.map((point) => point[i]), SAMPLES_MAX));
    for (const [title, tier] of [['Device tier', 'device'], ['Host tier', 'host']]) {
      const chart = charts.find((one) => one.title === title);
      chart.note.textContent = `of ${bytes(now.value('kv_budget_bytes', { tier }))}`;
    }
    const waiting = now.rows('requests_waiting').filter((row) => row.value > 0)
      .map((row) => `${count(row.value)} for ${QUEUE_REASONS[row.labels.reason] || row.labels.reason}`);
    charts[0].note.textContent = waiting.length > 0 ? `Waiting: ${waiting.join(', ')}` : 'Nothing waits.';
  }

  function row(request) {
    const done = request.state === 'prefill' ? `${count(request.prefilled_tokens)} / ${count(request.prompt_tokens)}` : count(request.prompt_tokens);
    const cells = [request.state, done, count(request.output_tokens), request.policy || '–', bytes(request.device_bytes),
      bytes(request.host_bytes), request.prefetch_hit_rate === null ? '–' : percent(request.prefetch_hit_rate), seconds(request.age_s)];
    return h('tr', {}, h('th', { scope: 'row', className: 'mono', text: request.id.replace(/^\w+-/, '').slice(0, 8) }),
      ...cells.map((text) => h('td', { text })));
  }

  function showRequests(requests) {
    const place = byId('running');
    if (requests.length === 0) {
      place.replaceChildren(h('p', { className: 'muted', text: 'No requests.' }));
      return;
    }
    const heads = ['Request', 'State', 'Prompt', 'Output', 'Policy', 'Device', 'Host', 'Hits', 'Age'];
    place.replaceChildren(h('table', {}, h('thead', {}, h('tr', {}, ...heads.map((text) => h('th', { scope: 'col', text })))),
      h('tbody', {}, ...requests.slice(0, 100).map(row))));
  }

  async function sample(mine) {
    const state = byId('live-state');
    try {
      const [text, list] = await Promise.all([getText('metrics'), getJson('v1/kvahead/requests').catch((error) => {
        if (error.status === 404) return { data: [] }; /* --no-live-view */
        throw error;
      })]);
      if (mine !== turn) return;
      take(text);
      showRequests(list.data);
      failures = 0;
      state.textContent = `The last three minutes, every ${SAMPLE_MS / 1000} s`;
      state.classList.remove('problem');
    } catch (error) {
      failures++;
      state.textContent = error.message;
      state.classList.add('problem');
      if (error.status === 401) {
        chat.onkey(error.message);
        return;
      }
    }
    if (shown && !document.hidden && mine === turn) timer = setTimeout(() => sample(mine), Math.min(30000, SAMPLE_MS * 2 ** Math.min(4, failures)));
  }

  function start() {
    clearTimeout(timer);
    if (!charts) build();
    if (shown && !document.hidden) sample(++turn);
  }

  document.addEventListener('visibilitychange', () => { if (shown) start(); });
  return {
    show(on) {
      shown = on;
      if (on) start();
      else clearTimeout(timer);
    },
  };
})();

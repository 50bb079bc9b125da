/* live.js - what the server does now, from /metrics and the list of requests, every two seconds
 * while it is looked at or an answer comes. */

const SAMPLE_MS = 2000;
const SAMPLES_MAX = 91;  /* three minutes */
const ROWS_MAX = 100;    /* requests that are listed */
const WINDOW = 5;        /* samples over which rates and quantiles are taken */

const QUEUE_REASONS = { batch_full: 'a place in the batch', device_bytes: 'device memory', host_bytes: 'host memory',
  prefill: 'a place for its prompt', sibling: 'its prompt', key: 'its key’s share', new: 'a look at it' };

const waitingIn = (now) => now.value('requests_waiting') + now.value('requests_suspended');
const tierOf = (now, tier) => [now.value('kv_bytes', { tier }), now.value('kv_cached_bytes', { tier })];
const halves = (name) => (now, before) => [0.5, 0.95].map((q) => quantile(now, before, name, q));
const rates = (...names) => (now, before) => names.map((name) => rate(now, before, name));
const lines = (...labels) => labels.map((label, i) => ({ label, className: `s${i + 1}` }));
const tierLines = lines('used', 'of it prefix cache');
tierLines[0].area = true;

/* What is drawn: title, options, and the values: a function of a sample and the one before the
 * window. */
const CHARTS = [
  ['Requests', { text: number, series: lines('running', 'waiting') },
    (now) => [now.value('requests_running'), waitingIn(now)]],
  ['Tokens per second', { text: number, series: lines('generated', 'prompts') },
    rates('generation_tokens_total', 'scheduler_prompt_tokens_total')],
  ['Time to first token', { text: seconds, series: lines('median', '95 %') }, halves('time_to_first_token_seconds')],
  ['Between tokens', { text: seconds, series: lines('median', '95 %') }, halves('inter_token_latency_seconds')],
  ['Device tier', { text: bytes, isBytes: true, series: tierLines }, (now) => tierOf(now, 'device')],
  ['Host tier', { text: bytes, isBytes: true, series: tierLines }, (now) => tierOf(now, 'host')],
  ['Fetch hits', { text: percent, max: 1, note: 'Chosen rows that were on the device already.', series: lines('rows') },
    (now, before) => [share(now, before, 'fetch_rows_hit_total', ['fetch_rows_missed_total'])]],
  ['Copies between the tiers',
    { text: (value) => `${bytes(value)}/s`, isBytes: true, series: lines('to device', 'to host') },
    rates('fetched_bytes_total', 'offloaded_bytes_total')],
];

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
  let running = false;
  let failures = 0;
  let refused = false; /* until another key is given, or it is looked at again */

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
    /* While nobody looked there was nothing. */
    const missed = last ? Math.round((now.at - last.at) / SAMPLE_MS) - 1 : 0;
    if (missed > 2) {
      samples = [];
      const nothing = CHARTS.map(([, { series }]) => series.map(() => null));
      points.push(...Array(Math.min(missed, SAMPLES_MAX)).fill(nothing));
    }
    samples.push(now);
    if (samples.length > WINDOW + 1) samples.shift();
    const before = samples[0];
    points.push(CHARTS.map(([, , values]) => values(now, before)));
    points.splice(0, Math.max(0, points.length - SAMPLES_MAX));
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
    const read = request.state === 'prefill' ? `${count(request.prefilled_tokens)} / ` : '';
    const hits = request.prefetch_hit_rate === null ? '–' : percent(request.prefetch_hit_rate);
    const cells = [request.state, read + count(request.prompt_tokens), count(request.output_tokens),
      request.policy || '–', bytes(request.device_bytes), bytes(request.host_bytes), hits, seconds(request.age_s)];
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
    const head = h('tr', {}, ...heads.map((text) => h('th', { scope: 'col', text })));
    place.replaceChildren(h('table', {}, h('thead', {}, head),
      h('tbody', {}, ...requests.slice(0, ROWS_MAX).map(row))));
    const left = requests.length - ROWS_MAX;
    if (left > 0) place.append(h('p', { className: 'muted', text: `${count(left)} more are not shown.` }));
  }

  /* --no-live-view answers 404. */
  async function askRequests() {
    try {
      return (await getJson('v1/kvahead/requests')).data;
    } catch (error) {
      if (error.status === 404) return [];
      throw error;
    }
  }

  async function sample() {
    const state = byId('live-state');
    try {
      const [text, requests] = await Promise.all([getText('metrics'), shown ? askRequests() : []]);
      take(text);
      showRequests(requests);
      failures = 0;
      state.textContent = `The last three minutes, every ${SAMPLE_MS / 1000} s`;
    } catch (error) {
      failures++;
      state.textContent = error.message;
      refused = error.status === 401;
      if (shown && refused) chat.onkey(error.message);
    }
    state.classList.toggle('problem', failures > 0);
  }

  const isWanted = () => (shown || chat.jobs.size > 0) && !document.hidden && !refused;

  /* One loop at most. It ends when nobody looks, and pauses longer where nothing is had. */
  async function loop() {
    if (running || !isWanted()) return;
    running = true;
    if (!charts) build();
    await sample();
    timer = setTimeout(again, SAMPLE_MS * 2 ** Math.min(4, failures));
  }

  function again() {
    clearTimeout(timer);
    timer = 0;
    running = false;
    loop();
  }

  document.addEventListener('visibilitychange', loop);
  return {
    show(on) {
      shown = on;
      refused = false;
      if (on && timer) again();
      loop();
    },
    wake: loop,
  };
})();

/* chart.js - lines over the last minutes, as SVG: one path for each series, made again with every
 * sample, and a mark where the pointer is. */

const CHART_W = 320;
const CHART_H = 96;

/* A bound for the axis that is round and does not jump with every sample. */
function niceMax(value, isBytes) {
  if (!(value > 0)) return 1;
  if (isBytes) return 2 ** Math.ceil(Math.log2(value * 1.0001));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5].map((step) => step * power).find((bound) => bound >= value * 1.0001) || 10 * power;
}

class Chart {
  /* series: [{label, className, area}]; text: a value for people; max: of the axis, if it is fixed;
   * isBytes: the axis ends at a power of two. */
  constructor(title, { series, text, max, isBytes, note }) {
    Object.assign(this, { title, series, text, max, isBytes, points: [], pointed: 0 });
    this.paths = series.map(({ className, area }) => svg('path', { class: `${area ? 'area' : 'line'} ${className}` }));
    this.mark = svg('line', { class: 'mark', y1: 0, y2: CHART_H });
    this.mark.style.display = 'none';
    this.top = h('span', { className: 'axis' });
    this.values = series.map(() => h('b', { text: '–' }));
    const box = { viewBox: `0 0 ${CHART_W} ${CHART_H}`, preserveAspectRatio: 'none' };
    this.picture = svg('svg', { ...box, role: 'img', 'aria-label': title },
      svg('path', { class: 'grid', d: `M0 .5H${CHART_W}M0 ${CHART_H / 2}H${CHART_W}M0 ${CHART_H - 0.5}H${CHART_W}` }),
      ...this.paths, this.mark);
    this.picture.addEventListener('pointermove', (event) => this.point(event));
    this.picture.addEventListener('pointerleave', () => this.showValues(0));
    this.note = h('p', { className: 'note', text: note || '' });
    this.node = h('section', { className: 'chart', 'aria-label': title },
      h('h2', { text: title }),
      h('div', { className: 'legend' }, ...series.map(({ label, className }, i) =>
        h('span', { className: 'key' }, h('i', { className }), `${label} `, this.values[i]))),
      h('div', { className: 'plot' }, this.top, this.picture), this.note);
  }

  x(i, capacity) {
    return CHART_W - (this.points.length - 1 - i) * (CHART_W / (capacity - 1));
  }

  /* points: [[value of each series, or null]], the newest last; `capacity` of them fill the width. */
  draw(points, capacity) {
    this.points = points;
    this.capacity = capacity;
    const highest = Math.max(0, ...points.flat().filter(Number.isFinite));
    const max = this.max || niceMax(highest, this.isBytes);
    this.top.textContent = this.text(max);
    this.series.forEach(({ area }, s) => {
      this.paths[s].setAttribute('d', this.path(points.map((point) => point[s]), max, area));
    });
    this.showValues(this.pointed);
  }

  /* Where there is no value the line is broken; a value alone is a dash. */
  path(values, max, area) {
    let d = '';
    let from = null;
    const y = (value) => (CHART_H - 1 - Math.min(1, value / max) * (CHART_H - 3)).toFixed(1);
    const x = (i) => this.x(i, this.capacity).toFixed(1);
    const close = (i) => {
      if (from === null) return;
      if (area) d += `L${x(i)} ${CHART_H}L${x(from)} ${CHART_H}Z`;
      else if (i === from) d += 'h-3';
      from = null;
    };
    values.forEach((value, i) => {
      if (!Number.isFinite(value)) {
        close(i - 1);
        return;
      }
      d += `${from === null ? 'M' : 'L'}${x(i)} ${y(value)}`;
      if (from === null) from = i;
    });
    close(values.length - 1);
    return d;
  }

  /* The sample that is `back` before the newest, also when there are newer ones. */
  showValues(back) {
    const i = Math.max(0, this.points.length - 1 - back);
    const point = this.points[i];
    this.pointed = back;
    this.mark.style.display = back === 0 ? 'none' : '';
    if (!point) return;
    for (const end of ['x1', 'x2']) this.mark.setAttribute(end, this.x(i, this.capacity));
    this.values.forEach((node, s) => {
      node.textContent = Number.isFinite(point[s]) ? this.text(point[s]) : '–';
    });
    this.picture.setAttribute('aria-label',
      `${this.title}: ${this.series.map(({ label }, s) => `${label} ${this.values[s].textContent}`).join(', ')}`);
  }

  point(event) {
    if (this.points.length === 0) return;
    const box = this.picture.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * CHART_W;
    const step = CHART_W / (this.capacity - 1);
    this.showValues(Math.max(0, Math.min(this.points.length - 1, Math.round((CHART_W - x) / step))));
  }
}

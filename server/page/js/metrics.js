/* metrics.js - Prometheus text, and what can be told from two samples of it. */

const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/* name -> [{labels, value}]; the label of the model is left out of the key of no sample. */
function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    if (!line.startsWith('kvahead_')) continue;
    const end = line.lastIndexOf(' ');
    const open = line.indexOf('{');
    const name = line.slice(0, open < 0 ? end : open);
    const labels = {};
    if (open >= 0) for (const [, key, value] of line.slice(open, end).matchAll(LABEL)) labels[key] = value;
    const value = line.slice(end + 1) === '+Inf' ? Infinity : Number(line.slice(end + 1));
    if (!families.has(name)) families.set(name, []);
    families.get(name).push({ labels, value });
  }
  return families;
}

class Sample {
  constructor(text, at) {
    this.families = parseMetrics(text);
    this.at = at;
  }

  rows(name) {
    return this.families.get(`kvahead_${name}`) || [];
  }

  /* The sum of the samples that have these labels. */
  value(name, labels = {}) {
    const wanted = Object.entries(labels);
    return this.rows(name).filter((row) => wanted.every(([key, value]) => row.labels[key] === value))
      .reduce((sum, row) => sum + row.value, 0);
  }

  /* upper bound -> observations up to it */
  buckets(name) {
    return this.rows(`${name}_bucket`).map(({ labels, value }) =>
      [labels.le === '+Inf' ? Infinity : Number(labels.le), value]);
  }
}

/* Per second, since an earlier sample; null: there is none. */
function rate(now, before, name) {
  const gone = (now.at - before.at) / 1000;
  return gone > 0 ? Math.max(0, now.value(name) - before.value(name)) / gone : null;
}

/* Of what was observed between two samples; null: nothing was. As Prometheus estimates it: linear
 * within a bucket. */
function quantile(now, before, name, q) {
  const earlier = new Map(before ? before.buckets(name) : []);
  const rows = now.buckets(name).map(([bound, value]) => [bound, value - (earlier.get(bound) || 0)]);
  const all = rows.at(-1)?.[1] || 0;
  if (all <= 0) return null;
  let lower = 0;
  let below = 0;
  for (const [bound, upTo] of rows) {
    if (upTo >= q * all) {
      if (bound === Infinity) return lower;
      return upTo > below ? lower + (bound - lower) * (q * all - below) / (upTo - below) : bound;
    }
    lower = bound;
    below = upTo;
  }
  return lower;
}

/* Part of a whole that grew between two samples; null: it did not grow. */
function share(now, before, part, others) {
  const of = (name) => now.value(name) - (before ? before.value(name) : 0);
  const whole = of(part) + others.reduce((sum, name) => sum + of(name), 0);
  return whole > 0 ? of(part) / whole : null;
}

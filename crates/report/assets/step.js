// The record as the page uses it: kinds, bytes in words, and what is there at a moment.

const record = JSON.parse(document.getElementById('record').textContent);
const plan = record.plan, step = record.step, run = record.run;
// Whether the line is of a card's memory, and not of the host's.
const ofCard = (plan.device || '').startsWith('cuda');

// In the order in which pictures stack them, from the keel up.
const KINDS = ['program', 'pipeline', 'parameter', 'optimizer', 'input', 'other', 'scratch', 'gradient', 'activation'];
const LABEL = {
  program: 'program', pipeline: 'input pipeline', parameter: 'parameters', optimizer: 'optimizer', input: 'inputs',
  other: 'other', scratch: 'scratch', gradient: 'gradients', activation: 'activations',
};

function css(name) { return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim(); }

// Three digits and a binary unit, as the command writes sizes.
function size(bytes) {
  if (bytes == null) return '–';
  const sign = bytes < 0 ? '−' : '';
  let value = Math.abs(bytes), unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit++; }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return sign + (+value.toFixed(digits)) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit];
}
function time(us) {
  if (us >= 1e6) return (us / 1e6).toFixed(2) + ' s';
  return us >= 1e3 ? (us / 1e3).toFixed(us >= 1e5 ? 0 : 1) + ' ms' : us.toFixed(us >= 10 ? 0 : 1) + ' µs';
}
// 1 op, 2 ops.
const counted = (n, one, many = one + 's') => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
// Never 100 % of what is not all of it.
const percent = (part, whole) => whole > 0 ? (part < whole ? Math.min(99.9, 100 * part / whole) : 100 * part / whole).toFixed(part < whole && part > .99 * whole ? 1 : 0) + ' %' : '–';

// Typed columns, so that a redraw touches no objects.
const model = step && (() => {
  const T = step.tensors, n = T.length, N = step.instructions.length;
  const kind = new Uint8Array(n), from = new Uint32Array(n), to = new Uint32Array(n);
  const offset = new Float64Array(n), bytes = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    kind[i] = Math.max(0, KINDS.indexOf(T[i].kind));
    from[i] = T[i].from; to[i] = T[i].to; offset[i] = T[i].offset; bytes[i] = T[i].bytes;
  }
  const fixed = KINDS.map(() => 0);
  fixed[0] = step.program_bytes; fixed[1] = step.pipeline_bytes; fixed[5] = step.other_bytes;
  for (const r of step.residents) fixed[Math.max(0, KINDS.indexOf(r.kind))] += r.bytes;
  const held = KINDS.map((_, k) => new Float64Array(N).fill(fixed[k]));
  const change = KINDS.map(() => new Float64Array(N + 1));
  for (let i = 0; i < n; i++) { change[kind[i]][from[i]] += bytes[i]; change[kind[i]][to[i]] -= bytes[i]; }
  const total = new Float64Array(N);
  KINDS.forEach((_, k) => {
    let sum = 0;
    for (let t = 0; t < N; t++) { sum += change[k][t]; held[k][t] += sum; total[t] += held[k][t]; }
  });
  let peak = 0;
  for (let t = 1; t < N; t++) if (total[t] > total[peak]) peak = t;
  return { n, N, kind, from, to, offset, bytes, fixed, held, total, peak };
})();

const site = i => i == null ? '' : step.sites[i];
const nameOf = i => step.names[step.tensors[i].name];
const layerOf = i => step.names[step.tensors[i].layer] || nameOf(i);
const titleOf = i => step.tensors[i].kind === 'scratch' ? layerOf(i) + ' scratch' : nameOf(i);
const typeOf = t => t.dtype + '[' + t.shape.join(', ') + ']';
const instructionName = t => {
  const i = step.instructions[t], layer = step.names[i.layer];
  return layer ? layer + '/' + i.op : i.op;
};
// The part of a model that a person changes: the first piece of the path, or the second too where all share the first.
const topLevel = (() => {
  if (!step) return () => '';
  const first = new Set();
  for (const t of step.tensors) { const layer = step.names[t.layer]; if (layer) first.add(layer.split('/')[0]); }
  const depth = first.size > 1 ? 1 : 2;
  return layer => layer.split('/').slice(0, depth).join('/') || '(top)';
})();

function liveAt(t) {
  const live = [];
  for (let i = 0; i < model.n; i++) if (model.from[i] <= t && t < model.to[i]) live.push(i);
  return live.sort((a, b) => model.bytes[b] - model.bytes[a]);
}

// The page: sentences, tables, and what happens when something is pointed at.

const $ = id => document.getElementById(id);
function make(tag, { text, bytes, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  if (bytes != null) { element.textContent = size(bytes); element.title = bytes.toLocaleString('en') + ' bytes'; element.dataset.bytes = bytes; }
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children.filter(child => child != null));
  return element;
}
// Colours are set by script: the page allows no styles in attributes.
const painted = (element, colour, width) => { element.style.background = `var(--${colour})`; if (width != null) element.style.width = width; return element; };
const dot = kind => painted(make('i', { class: 'dot' }), kind);
const words = (element, ...parts) => { element.replaceChildren(...parts); return element; };
const bold = text => make('b', { text });
const strong = text => make('strong', { text });
const bytesWord = bytes => make('span', { bytes });

function header() {
  $('model').textContent = plan.model || 'a step';
  const parts = [`batch ${plan.batch}`, plan.device, run ? 'a run' : 'a plan, nothing was run', plan.exactness];
  $('subtitle').textContent = parts.filter(Boolean).join(' · ');
  const planned = plan.planned_bytes, line = plan.memory_limit_bytes;
  const how = [plan.recomputed_ops ? `${counted(plan.recomputed_ops, 'op runs', 'ops run')} again instead of being kept` : '', plan.micro_batches > 1 ? `the batch runs in ${plan.micro_batches} pieces` : ''].filter(Boolean).join(', ');
  const slower = plan.unlimited_ms > 0 ? 100 * (plan.predicted_ms / plan.unlimited_ms - 1) : 0;
  words($('verdict'), ...(line
    ? ['Under a memory limit of ', bold(size(line)), ' the process takes ', strong(size(planned)), ` (${percent(planned, line)} of it)`]
    : ['Without a memory limit the process takes ', strong(size(planned))]), how ? `: ${how}, ` : ', ',
    slower >= .5 ? `${slower.toFixed(slower < 10 ? 1 : 0)} % more time than without a limit.` : 'at no cost in time.');
  const figures = [['memory limit', line], ['planned', planned], ['most measured', run && run.peak_bytes], ['least possible', plan.floor_bytes], ['fastest plan takes', plan.unlimited_bytes], ['host memory limit', ofCard ? plan.host_limit_bytes : null], ['host memory planned', ofCard ? plan.host_planned_bytes : null], ['host memory at most', ofCard && run ? run.host_peak_bytes : null]];
  for (const [name, bytes] of figures) if (bytes) $('figures').append(make('div', {}, make('dt', { text: name }), make('dd', { bytes, id: 'figure-' + name.replace(/ /g, '-') })));
  if (plan.predicted_ms) $('figures').append(make('div', {}, make('dt', { text: 'predicted step' }), make('dd', { text: time(plan.predicted_ms * 1e3) }, make('small', { text: ` fastest ${time(plan.unlimited_ms * 1e3)}` }))));
  if (run && run.measured_ms) $('figures').append(make('div', {}, make('dt', { text: 'measured step' }), make('dd', { text: time(run.measured_ms * 1e3), id: 'figure-measured-step' }, make('small', { text: ' median, input and all' }))));
  hull(planned, line);
}

// A bar of all bytes, with the line on it.
function hull(planned, line) {
  const most = Math.max(planned, Math.min(line || 0, planned * 1.6), plan.unlimited_bytes <= planned * 2.2 ? plan.unlimited_bytes : 0) * 1.04;
  const bar = make('div', { class: 'hull-bar' });
  const shares = model ? KINDS.map((_, k) => model.held[k][model.peak]) : [planned];
  shares.forEach((bytes, k) => { if (bytes > 0) { const part = painted(make('i'), model ? KINDS[k] : 'parameter', 100 * bytes / most + '%'); part.title = `${LABEL[KINDS[k]]} ${size(bytes)}`; bar.append(part); } });
  $('hull').append(bar);
  $('hull').setAttribute('aria-label', `${size(planned)} planned` + (line ? ` under a memory limit of ${size(line)}` : ''));
  const mark = (bytes, name, label) => {
    if (!bytes || bytes > most) return;
    const at = 100 * bytes / most;
    const element = make('div', { class: `mark ${name} ${at < 12 ? 'at-start' : at > 84 ? 'at-end' : ''}` }, make('span', { text: label }));
    element.style.left = at + '%';
    $('hull').append(element);
  };
  mark(plan.floor_bytes, 'floor', `least ${size(plan.floor_bytes)}`);
  if (plan.unlimited_bytes > planned * 1.08) mark(plan.unlimited_bytes, 'free', `fastest plan ${size(plan.unlimited_bytes)}`);
  mark(line, 'line', `limit ${size(line)}`);
}

// Everything at the peak: residents and what lies in the arena.
function peakRows() {
  const rows = step.residents.map(r => ({ i: -1, name: step.names[r.name], layer: step.names[r.name].replace(/\/[^/]*$/, ''), kind: r.kind, type: typeOf(r), bytes: r.bytes, site: site(r.site) }));
  for (const i of liveAt(model.peak)) {
    const t = step.tensors[i];
    rows.push({ i, name: titleOf(i), layer: step.names[t.layer], kind: t.kind, type: typeOf(t), bytes: t.bytes, site: site(t.site), again: t.again });
  }
  return rows.sort((a, b) => b.bytes - a.bytes);
}

function changes(rows) {
  const groups = new Map();
  for (const row of rows) {
    if (/^(training\.|output )/.test(row.name) || row.kind === 'input') continue;
    const name = topLevel(row.layer || row.name);
    const group = groups.get(name) || { name, bytes: 0, kinds: {}, rows: [] };
    group.bytes += row.bytes;
    group.kinds[row.kind] = (group.kinds[row.kind] || 0) + row.bytes;
    group.rows.push(row);
    groups.set(name, group);
  }
  const list = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  if (!list.length) return;
  $('change').hidden = false;
  const top = list[0], here = instructionName(model.peak), total = model.total[model.peak];
  words($('change-lead'), 'Memory is fullest while ', strong(here), ' runs. ', bold(top.name), ` holds most of it then: ${size(top.bytes)} of ${size(total)}. `,
    'Make that layer smaller (fewer channels, a smaller input, a smaller batch) and the peak falls; a layer that holds nothing at this moment changes nothing.');
  for (const group of list.slice(0, 6)) {
    const bar = make('div', { class: 'share' });
    for (const kind of KINDS.slice().reverse()) if (group.kinds[kind]) { const part = painted(make('i'), kind, 100 * group.kinds[kind] / list[0].bytes + '%'); part.title = `${LABEL[kind]} ${size(group.kinds[kind])}`; bar.append(part); }
    const largest = group.rows.slice(0, 2).map(r => `${r.name} ${r.type} ${size(r.bytes)}` + (r.site ? ` at ${r.site}` : '')).join('; ');
    $('layers').append(make('div', { class: group === top ? 'layer top' : 'layer' }, make('b', { text: group.name }), bar, make('span', { class: 'n', bytes: group.bytes }), make('p', { text: largest })));
  }
}

function peakTable(rows, show) {
  $('peak').hidden = false;
  const rest = step.planned_bytes - model.total[model.peak];
  words($('peak-lead'), `Instruction ${model.peak}, `, strong(instructionName(model.peak)), ': ', make('span', { bytes: model.total[model.peak], id: 'peak-bytes' }),
    ' held, of which ', make('span', { bytes: model.total[model.peak] - model.fixed.reduce((a, b) => a + b), id: 'peak-arena' }), ' in the arena and ', bytesWord(step.program_bytes + step.pipeline_bytes), ' program and input pipeline', ...(rest > 0 ? ['. The rest of the ', bytesWord(step.planned_bytes), ' that are planned, ', make('span', { bytes: rest, id: 'peak-rest' }), ', holds nothing at this moment.'] : [': all that is planned.']));
  const columns = [['tensor', r => r.name], ['bytes', r => r.bytes], ['kind', r => r.kind], ['type', r => r.type], ['layer', r => r.layer], ['source line', r => r.site]];
  let order = 1, down = true, most = 20;
  const draw = () => {
    rows.sort((a, b) => { const [x, y] = [columns[order][1](a), columns[order][1](b)]; return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
    const heads = columns.map(([name], c) => {
      const button = make('button', { type: 'button', text: name + (c === order ? (down ? ' ↓' : ' ↑') : '') });
      button.addEventListener('click', () => { down = c === order ? !down : c === 1; order = c; draw(); });
      return make('th', { class: c === 1 ? 'n' : null, 'aria-sort': c === order ? (down ? 'descending' : 'ascending') : null }, button);
    });
    const lines = rows.slice(0, most).map(r => {
      const name = r.i < 0 ? make('span', { text: r.name }) : make('button', { class: 'link', type: 'button', text: r.name + (r.again ? ' ↻' : '') });
      if (r.i >= 0) name.addEventListener('click', () => show(r.i));
      return make('tr', {}, make('td', {}, name), make('td', { class: 'n', bytes: r.bytes }), make('td', { class: 't' }, dot(r.kind), LABEL[r.kind] || r.kind), make('td', { class: 't', text: r.type }), make('td', { class: 's', text: r.layer }), make('td', { class: 's', text: r.site }));
    });
    $('peak-table').replaceChildren(make('thead', {}, make('tr', {}, ...heads)), make('tbody', {}, ...lines));
    $('peak-more').hidden = rows.length <= most;
    $('peak-more').textContent = `Show all ${rows.length}`;
  };
  $('peak-more').addEventListener('click', () => { most = rows.length; draw(); });
  draw();
}

// Who holds the memory at a moment.
let momentShown = -1;
function moment(t) {
  if (t === momentShown) return;
  momentShown = t;
  const i = step.instructions[t], live = liveAt(t);
  const what = { run: '', again: ' (computed again)', copy: ' (a copy)', check: ' (looks whether the loss is finite)', offload: ' (a copy to the host begins)', prefetch: ' (a copy back begins)', await: ' (a copy is waited for)' }[i.what];
  words($('moment-title'), `Instruction ${t}: ${instructionName(t)}${what}, `, bytesWord(model.total[t]));
  $('moment-title').dataset.instruction = t;
  const stretch = step.stretches.filter(s => s.first <= t).pop();
  const part = stretch && stretch.name !== 'step' ? `${stretch.name}${stretch.runs > 1 ? `, run ${stretch.runs} times on ${counted(stretch.samples, 'sample')} each` : ''} · ` : '';
  $('moment-what').textContent = `${part}${i.phase} · ${time(i.us)} predicted${i.site == null ? '' : ' · ' + site(i.site)}${t === model.peak ? ' · the peak' : ''}`;
  const most = 8;
  const lines = live.slice(0, most).map(j => make('tr', {}, make('td', {}, dot(step.tensors[j].kind), titleOf(j)), make('td', { class: 's t', text: typeOf(step.tensors[j]) }), make('td', { class: 'n', bytes: step.tensors[j].bytes })));
  if (live.length > most) lines.push(make('tr', {}, make('td', { class: 's', text: `and ${live.length - most} more` }), make('td', { class: 't' }), make('td', { class: 'n', bytes: live.slice(most).reduce((sum, j) => sum + model.bytes[j], 0) })));
  $('moment-tensors').tBodies[0].replaceChildren(...lines);
  const canvas = $('moment-arena'), ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * ratio; canvas.height = 34 * ratio;
  const ctx = canvas.getContext('2d');
  ctx.scale(ratio, ratio);
  ctx.fillStyle = css('unused'); ctx.fillRect(0, 0, width, 34);
  ctx.font = '11px system-ui, sans-serif'; ctx.textBaseline = 'middle';
  for (const j of live) {
    const left = model.offset[j] / step.arena_bytes * width, wide = Math.max(.6, model.bytes[j] / step.arena_bytes * width);
    ctx.fillStyle = css(step.tensors[j].kind); ctx.fillRect(left, 0, Math.max(.6, wide - .6), 34);
    const room = Math.floor((wide - 8) / 6);
    if (room > 4) { const text = titleOf(j); ctx.fillStyle = '#fff'; ctx.fillText(text.length > room ? text.slice(0, room - 1) + '…' : text, left + 5, 17); }
  }
}

function stepSections() {
  for (const id of ['load', 'arena']) $(id).hidden = false;
  for (const kind of KINDS) if (model.held[KINDS.indexOf(kind)].some(v => v > model.total[model.peak] / 500)) $('legend').append(make('li', {}, painted(make('i'), kind), LABEL[kind]));
  selected = model.peak;
  const pick = t => { selected = t; moment(t); load.plot.redraw(false); map.draw(); };
  const load = loadChart(t => moment(t == null ? selected : t), pick);
  const map = arenaMap(pick);
  moment(selected);
  $('load-chart').addEventListener('keydown', e => {
    const far = e.shiftKey ? 10 : 1;
    const to = { ArrowLeft: selected - far, ArrowRight: selected + far, Home: 0, End: model.N - 1, p: model.peak, P: model.peak }[e.key];
    if (to == null) return;
    e.preventDefault();
    pick(Math.min(model.N - 1, Math.max(0, to)));
  });
  const show = i => { map.show(i); $('arena').scrollIntoView({ block: 'start' }); };
  $('search').addEventListener('input', e => {
    const hits = map.find(e.target.value);
    $('found').textContent = e.target.value.trim() ? `${hits.length} of ${counted(model.n, 'tensor')}` : '';
    $('found').dataset.count = hits.length;
    const best = hits.slice().sort((a, b) => model.bytes[b] - model.bytes[a]).slice(0, 12);
    $('hits').replaceChildren(...best.map(i => {
      const button = make('button', { class: 'link', type: 'button', text: `${titleOf(i)} ${size(model.bytes[i])}` });
      button.addEventListener('click', () => map.show(i));
      return make('li', {}, button);
    }));
  });
  $('search').addEventListener('keydown', e => { if (e.key === 'Enter') { const first = $('hits').querySelector('button'); if (first) first.click(); } });
  const rows = peakRows();
  changes(rows);
  peakTable(rows, show);
  return { map, pick };
}

function frontierSection() {
  if (!plan.predicted_ms) { $('frontier').hidden = true; return; }
  const n = record.frontier ? record.frontier.points.length : 0;
  words($('frontier-lead'), n ? `${counted(n, 'plan')} for this step, from the least memory to the most; ` : 'What is known of other plans for this step; ', 'the large dot is this one. Less memory costs time: what is not kept is computed again, and what does not fit is done in pieces.');
  frontierChart();
  const lowest = n ? record.frontier.points.find(p => p.planned_bytes === plan.floor_bytes) : null;
  const leastMs = lowest ? lowest.predicted_ms : plan.planned_bytes === plan.floor_bytes ? plan.predicted_ms : null;
  const rows = [];
  if (plan.unshared_bytes) rows.push(['every tensor with bytes of its own', plan.unshared_bytes, plan.unlimited_ms]);
  rows.push(['bytes shared at fixed offsets, in the best order', plan.unlimited_bytes, plan.unlimited_ms]);
  const levers = [plan.recomputed_ops ? `${counted(plan.recomputed_ops, 'op')} computed again` : '', plan.micro_batches > 1 ? `${plan.micro_batches} micro-batches` : ''].filter(Boolean).join(', ');
  rows.push([(levers ? `and ${levers}` : 'nothing else was needed') + ': this plan', plan.planned_bytes, plan.predicted_ms, true]);
  rows.push(['the least possible', plan.floor_bytes, leastMs]);
  let before = null;
  const lines = rows.map(([name, bytes, ms, here]) => {
    const saved = before == null ? null : before - bytes;
    before = bytes;
    return make('tr', { class: here ? 'here' : null }, make('td', { text: name }), make('td', { class: 'n', bytes }), make('td', { class: 'n', text: saved == null ? '' : saved >= 0 ? 'saves ' + size(saved) : 'takes ' + size(-saved) + ' more' }), make('td', { class: 'n', text: ms == null ? '–' : time(ms * 1e3) }));
  });
  $('levers').replaceChildren(make('thead', {}, make('tr', {}, make('th', { text: 'lever' }), make('th', { class: 'n', text: 'the process takes' }), make('th', { class: 'n', text: 'against the row above' }), make('th', { class: 'n', text: 'predicted step' }))), make('tbody', {}, ...lines));
}

function runSection() {
  const s = run.steps, grid = $('run-charts');
  $('run').hidden = false;
  const epochs = run.epochs, value = (name, e) => { const found = e.values.find(v => v[0] === name); return found ? found[1] : null; };
  const over = name => { const at = new Map(epochs.map(e => [e.step, value(name, e)])); return xs.map(x => at.has(x) ? at.get(x) : null); };
  const xs = [...new Set([...s.step, ...epochs.map(e => e.step)])].sort((a, b) => a - b);
  const on = column => { const at = new Map(s.step.map((x, i) => [x, column[i]])); return xs.map(x => at.has(x) ? at.get(x) : null); };
  runChart(grid, 'Loss', xs, [{ label: 'each step', values: on(s.loss), colour: 'program' }, { label: 'epoch', values: over('loss'), colour: 'parameter', points: true, width: 2 }, { label: 'validation', values: over('val_loss'), colour: 'gradient', points: true, width: 2 }]);
  const measures = epochs.length ? epochs[0].values.map(v => v[0]).filter(name => !/^(loss|val_loss|rate|samples_s|waiting|skipped)$|_bytes$|seconds$/.test(name)) : [];
  runChart(grid, 'Metrics', xs, measures.map((name, i) => ({ label: name, values: over(name), colour: ['activation', 'gradient', 'optimizer', 'scratch', 'parameter', 'input'][i % 6], points: true, width: 2 })));
  // A line is drawn over what it counts, and over nothing else.
  const counts = { bytes: true, line: plan.memory_limit_bytes, range: (_, low, high) => [0, Math.max(high, plan.memory_limit_bytes || 0, plan.planned_bytes) * 1.12] };
  const host = [{ label: 'resident', values: on(s.resident_bytes), colour: 'activation', width: 2 }, { label: 'most so far', values: on(s.resident_peak_bytes), colour: 'gradient' }];
  const there = { label: ofCard ? 'on the card' : 'tensors', values: on(s.device_bytes), colour: 'parameter' };
  if (ofCard) {
    runChart(grid, "The card's memory over all steps", xs, [there, { label: 'most so far', values: on(s.device_peak_bytes), colour: 'gradient' }], counts);
    runChart(grid, "The host's memory over all steps, which the limit does not count", xs, host, { bytes: true, range: (_, low, high) => [0, high * 1.12] });
  } else runChart(grid, 'Memory over all steps', xs, [...host, there], counts);
  runChart(grid, 'Samples a second', xs, [{ label: 'samples/s', values: on(s.samples_s), colour: 'parameter' }], { range: (_, low, high) => [0, high * 1.1 || 1] });
  runChart(grid, 'Waiting for input, % of the time', xs, [{ label: 'waiting', values: on(s.waiting.map(w => w == null ? null : 100 * w)), colour: 'scratch' }], { percent: true, range: [0, 100] });
  runChart(grid, 'Learning rate', xs, [{ label: 'rate', values: on(s.rate), colour: 'optimizer' }]);
  if (s.step.length) {
    const peaks = ofCard ? s.device_peak_bytes : s.resident_peak_bytes, last = s.step.length - 1;
    let rose = last;
    while (rose > 0 && peaks[rose - 1] === peaks[last]) rose--;
    const held = s.device_bytes.slice(Math.min(1, last)), spread = Math.max(...held) - Math.min(...held);
    const under = plan.memory_limit_bytes == null || run.peak_bytes == null ? '' : run.peak_bytes <= plan.memory_limit_bytes ? `, ${size(plan.memory_limit_bytes - run.peak_bytes)} under the limit` : `, ${size(run.peak_bytes - plan.memory_limit_bytes)} over the limit`;
    const since = run.peak_bytes != null && rose < last && peaks[last] === run.peak_bytes ? `, and that since update ${s.step[rose].toLocaleString('en')}: not a byte more in the ${counted(s.step[last] - s.step[rose], 'update')} after it` : '';
    words($('flat'), `Over ${counted(s.step[last], 'update')} the process took at most `,
      ...(run.peak_bytes == null ? ['an unknown part of the card’s memory: it was not measured'] : [make('strong', { bytes: run.peak_bytes, id: 'run-peak' }), ofCard ? ' of the card’s memory' : '', under, since]),
      ofCard && run.host_peak_bytes ? `, and ${size(run.host_peak_bytes)} of the host’s, which the limit does not count. ` : '. ',
      spread === 0 ? 'Tensors held the same bytes at every step. ' : `What tensors held differed by at most ${size(spread)} between steps. `,
      run.unread_lines ? `${counted(run.unread_lines, 'line')} of its tables could not be read and ${run.unread_lines === 1 ? 'is' : 'are'} left out.` : '');
  }
  const shown = [];
  for (const e of run.events) {
    const before = shown[shown.length - 1];
    if (before && before.event === e.event && ['saved', 'skipped'].includes(e.event)) { before.n++; before.to = e.step; } else shown.push({ ...e, n: 1, to: e.step });
  }
  const say = { started: 'the run began', ended: 'the run ended', saved: 'checkpoint written', resumed: 'went on from a checkpoint', skipped: 'left out, not finite', replanned: 'planned again', fault: 'stopped by a fault' };
  $('events').replaceChildren(make('thead', {}, make('tr', {}, make('th', { text: 'after update' }), make('th', { text: 'event' }), make('th', { text: 'why' }))),
    make('tbody', {}, ...shown.slice(0, 200).map(e => make('tr', {}, make('td', { text: e.step == null ? '' : e.n > 1 ? `${e.step}–${e.to}` : e.step }), make('td', { text: (say[e.event] || e.event) + (e.n > 1 ? ` (${e.n} times)` : '') }), make('td', { class: 'quiet', text: e.why || '' })))));
}

function ledgerSection() {
  const kinds = new Map();
  const add = (sum, planned, measured) => { sum.planned += planned; if (measured != null) sum.measured = (sum.measured || 0) + measured; };
  for (const r of run.ledger) {
    if (!kinds.has(r.kind)) kinds.set(r.kind, { planned: 0, measured: null });
    add(kinds.get(r.kind), r.planned_bytes, r.measured_bytes);
  }
  if (!kinds.size) return;
  $('measured').hidden = false;
  const most = Math.max(...[...kinds.values()].flatMap(k => [k.planned, k.measured || 0]));
  // The host's memory beside a card's, and a disk's files, are no part of what is planned of the memory that the limit is of.
  const total = { planned: 0, measured: null };
  const isBeside = name => name === 'host' || name === 'disk';
  for (const [name, k] of kinds) if (!isBeside(name)) add(total, k.planned, k.measured);
  const NAMES = { activation: 'arena (activations, gradients, scratch)', program: 'program' + (plan.pipeline_bytes ? ', input pipeline' : '') + ', planning', input: 'batches, results and other tensors', host: 'host memory, beside all that', disk: 'files on a disk, beside all that' };
  const bar = (bytes, kind) => make('div', { class: 'share' }, painted(make('i'), kind, 100 * (bytes || 0) / most + '%'));
  const figure = bytes => bytes == null ? make('td', { class: 'n', text: 'not measured' }) : make('td', { class: 'n', bytes });
  const row = (name, k, here) => make('tr', { class: here ? 'here' : null }, make('td', {}, here ? null : dot(LABEL[name] ? name : 'other'), NAMES[name] || LABEL[name] || name), make('td', {}, here ? null : bar(k.planned, LABEL[name] ? name : 'other'), here ? null : bar(k.measured, LABEL[name] ? name : 'other')), figure(k.planned), figure(k.measured), make('td', { class: 'n', text: k.measured == null ? '' : k.measured === k.planned ? 'equal' : (k.measured > k.planned ? '+' : '') + size(k.measured - k.planned) }));
  // Of libraries and of the host's memory each part has a row: they are few, and nothing else names them.
  const parts = kind => run.ledger.filter(r => r.kind === kind).map(r => make('tr', { class: 'part' }, make('td', { class: 'quiet', text: `\u2003${r.name}` }), make('td', {}), figure(r.planned_bytes), figure(r.measured_bytes), make('td', {})));
  const lines = [...kinds].filter(([name]) => !isBeside(name)).flatMap(([name, k]) => [row(name, k), ...(name === 'library' ? parts(name) : [])]);
  lines.push(row('in all', total, true));
  for (const name of ['host', 'disk']) if (kinds.has(name)) lines.push(row(name, kinds.get(name)), ...parts(name));
  $('ledger').replaceChildren(make('thead', {}, make('tr', {}, make('th', { text: 'kind' }), make('th', { text: 'planned over measured' }), make('th', { class: 'n', text: 'planned' }), make('th', { class: 'n', text: 'measured at the end' }), make('th', { class: 'n', text: 'difference' }))),
    make('tbody', {}, ...lines));
}

header();
const parts = model && model.N ? stepSections() : {};
timeSection();
waysSection();
frontierSection();
if (run) { runSection(); ranksSection(); ledgerSection(); }

function repaint() {
  charts.forEach(chart => chart.draw());
  if (parts.map) { parts.map.fit(); const t = momentShown; momentShown = -1; moment(t); }
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
$('theme').addEventListener('click', () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  repaint();
});
// For tests: the numbers that were drawn, and when the page was ready to be read.
globalThis.plimsoll = { record, model, map: parts.map, pick: parts.pick, readyMs: 0 };
requestAnimationFrame(() => { globalThis.plimsoll.readyMs = performance.now(); document.documentElement.dataset.ready = 'true'; });

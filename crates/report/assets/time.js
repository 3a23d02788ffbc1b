// Where the time of a step went, as it was measured, beside what was predicted.

function timeSection() {
  const profile = record.profile;
  if (!profile || !profile.steps.length) return;
  $('time').hidden = false;
  const mean = profile.mean, n = profile.steps.length;
  const known = [['kernels', mean.kernel_ms, 'activation'], ['copies on the device', mean.copy_ms, 'optimizer'], ['waiting for copies or other ranks', mean.await_ms, 'input'], ['looking at the loss', mean.check_ms, 'scratch'], ['between instructions', mean.between_ms, 'program']];
  words($('time-lead'), `${counted(n, 'step')} on ${profile.device} took `, strong(time(mean.step_ms * 1e3)), ` each on average; ${time(profile.predicted_ms * 1e3)} were predicted. `,
    `The host waited ${time(mean.host_waiting_ms * 1e3)} a step for the device and ${time(mean.data_waiting_ms * 1e3)} for data. `,
    mean.uploaded_bytes + mean.downloaded_bytes > 0 ? `A step copied ${size(mean.uploaded_bytes)} from the host and ${size(mean.downloaded_bytes)} to it` + (mean.beside_ms > 0 ? `, ${time(mean.beside_ms * 1e3)} of that beside kernels. ` : '. ') : '',
    'Memory: ', bytesWord(profile.planned_bytes), ' planned, ', make('span', { bytes: profile.taken_bytes, id: 'time-taken' }), ' taken at most.');
  const bar = make('div', { class: 'share' });
  for (const [name, ms, kind] of known) if (ms > 0) { const part = painted(make('i'), kind, 100 * ms / mean.step_ms + '%'); part.title = `${name} ${time(ms * 1e3)}`; bar.append(part); }
  $('time-parts').replaceChildren(bar, make('ul', { class: 'legend' }, ...known.filter(([, ms]) => ms > 0).map(([name, ms, kind]) => make('li', {}, dot(kind), `${name} ${time(ms * 1e3)} (${percent(ms, mean.step_ms)})`))));
  const NOTE = { again: ' (again)', offload: ' (to the host)', prefetch: ' (from the host)', await: ' (for a copy or other ranks)' };
  const head = names => make('thead', {}, make('tr', {}, ...names.map((name, i) => make('th', { class: i ? 'n' : null, text: name }))));
  const cell = text => make('td', { class: 'n', text });
  $('time-rows').replaceChildren(head(['what', 'calls', 'in all', 'one', 'share', 'predicted', 'bytes']), make('tbody', {}, ...profile.rows.slice(0, 40).map(r => make('tr', {},
    make('td', { text: r.name + (NOTE[r.what] || '') }), cell(r.count.toLocaleString('en')), cell(time(r.total_ms * 1e3)), cell(time(r.mean_us)), cell((100 * r.share).toFixed(1) + ' %'),
    cell(r.predicted_ms == null ? '' : time(r.predicted_ms * 1e3)), make('td', { class: 'n', bytes: r.bytes })))));
  if (!step) return;
  const apart = step.instructions.map((line, i) => ({ i, line, us: profile.instructions_us[i] })).filter(r => r.line.us > 0)
    .sort((a, b) => Math.abs(b.us - b.line.us) - Math.abs(a.us - a.line.us)).slice(0, 15);
  $('time-apart').replaceChildren(head(['instructions furthest from what was predicted', 'measured', 'predicted', 'source line']), make('tbody', {}, ...apart.map(r => make('tr', {},
    make('td', { text: instructionName(r.i) }), cell(time(r.us)), cell(time(r.line.us)), make('td', { class: 's', text: site(r.line.site) })))));
}

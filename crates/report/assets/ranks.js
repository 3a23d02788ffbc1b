// Several ranks: what each came to, and ways to share a training among them.

const seconds = s => time(s * 1e6);
const head = (...names) => make('thead', {}, make('tr', {}, ...names.map((name, i) => make('th', { class: i ? 'n' : null, text: name }))));

function ranksSection() {
  const ranks = run.ranks;
  if (!ranks) return;
  $('ranks').hidden = false;
  const rows = ranks.rows, limit = plan.memory_limit_bytes, most = Math.max(limit || 0, ...rows.map(r => Math.max(r.peak_bytes, r.planned_bytes)));
  const over = rows.filter(r => limit && r.peak_bytes > limit).length;
  const kept = limit ? over ? `; ${counted(over, 'rank')} went over the limit of ${size(limit)}` : `; each stayed within its limit of ${size(limit)}` : '';
  $('ranks-lead').textContent = `${counted(rows.length, 'rank')} by ${ranks.by}, --parallel ${ranks.parallel}${kept}. Figures are as of epoch ${ranks.epoch}; all else on this page is of rank 0.`;
  const bar = (bytes, kind) => make('div', { class: 'share' }, painted(make('i'), kind, 100 * bytes / most + '%'));
  $('ranks-rows').replaceChildren(head('rank', 'planned over measured', 'planned', 'at most', ofCard ? 'of the host at most' : null, 'sent', 'received', 'steps', 'waiting'),
    make('tbody', {}, ...rows.map(r => make('tr', {}, make('td', { text: r.rank }), make('td', {}, bar(r.planned_bytes, 'parameter'), bar(r.peak_bytes, 'activation')),
      make('td', { class: 'n', bytes: r.planned_bytes }), make('td', { class: 'n', bytes: r.peak_bytes }), ofCard ? make('td', { class: 'n', bytes: r.host_peak_bytes }) : make('td'),
      make('td', { class: 'n', bytes: r.sent_bytes }), make('td', { class: 'n', bytes: r.received_bytes }), make('td', { class: 'n', text: seconds(r.step_seconds) }), make('td', { class: 'n', text: seconds(r.waiting_seconds) })))));
}

function waysSection() {
  const ways = plan.strategies || [];
  if (!ways.length) return;
  $('ways').hidden = false;
  $('ways-rows').replaceChildren(head('--parallel', 'in shards', 'a rank', 'parameters', 'optimizer', 'a step', 'exchanges', 'beside', 'sent inside', 'to others'),
    make('tbody', {}, ...ways.map(w => w.fits
      ? make('tr', { class: w.parallel === plan.parallel ? 'here' : null }, make('td', { text: w.parallel + (w.estimated ? ' (reckoned)' : '') }), make('td', { class: 'quiet', text: w.what }), make('td', { class: 'n', bytes: w.planned_bytes }), make('td', { class: 'n', bytes: w.parameter_bytes }), make('td', { class: 'n', bytes: w.optimizer_bytes }),
        make('td', { class: 'n', text: seconds(w.predicted_seconds) }), make('td', { class: 'n', text: seconds(w.exchange_seconds) }), make('td', { class: 'n', text: seconds(w.beside_seconds) }), make('td', { class: 'n', bytes: Math.round(w.sent_inside_bytes) }), make('td', { class: 'n', bytes: Math.round(w.sent_between_bytes) }))
      : make('tr', {}, make('td', { text: w.parallel }), make('td', { class: 'quiet', text: w.what }), make('td', { colspan: 8, class: 'quiet', text: w.floor_bytes ? `does not fit; the least is ${size(w.floor_bytes)}` : w.why || 'does not fit' })))));
}

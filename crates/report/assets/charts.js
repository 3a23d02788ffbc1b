// Curves: the load over the step, plans against each other, and the run.

const charts = [];
const axis = (extra) => ({
  stroke: css('quiet'), grid: { stroke: css('rule'), width: 1 }, ticks: { stroke: css('rule'), width: 1 }, ...extra,
});
const byteAxis = () => axis({ size: 64, values: (_, ticks) => ticks.map(v => v === 0 ? '0' : size(v)), incrs: byteSteps });
const byteSteps = Array.from({ length: 46 }, (_, e) => 2 ** e);

// Keeps a chart as wide as its place, and draws it anew when the colours change.
function place(id, make) {
  const element = typeof id === 'string' ? document.getElementById(id) : id;
  const entry = { element, plot: null, draw() { if (this.plot) this.plot.destroy(); this.plot = make(element, element.clientWidth); } };
  entry.draw();
  charts.push(entry);
  new ResizeObserver(() => {
    const width = element.clientWidth;
    if (entry.plot && width > 0 && width !== entry.plot.width) entry.plot.setSize({ width, height: entry.plot.height });
  }).observe(element);
  return entry;
}

// The Plimsoll line: red, through the whole picture, with the mark that ships carry.
function drawLine(u, bytes, label) {
  if (bytes == null) return;
  const y = u.valToPos(bytes, 'y', true), ctx = u.ctx, r = devicePixelRatio;
  if (y < u.bbox.top) return;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = css('line');
  ctx.lineWidth = 3 * r;
  ctx.beginPath(); ctx.moveTo(u.bbox.left, y); ctx.lineTo(u.bbox.left + u.bbox.width, y); ctx.stroke();
  const x = u.bbox.left + 30 * r;
  ctx.beginPath(); ctx.arc(x, y, 9 * r, 0, 7); ctx.stroke();
  ctx.font = `600 ${13 * r}px system-ui, sans-serif`;
  ctx.textAlign = 'left'; ctx.textBaseline = 'bottom';
  ctx.fillText(label, x + 18 * r, y - 4 * r);
  ctx.restore();
}

let selected = 0;
function loadChart(onHover, onPick) {
  // From the top down, each painted over the one above.
  const order = KINDS.map((_, k) => k).filter(k => model.held[k].some(v => v > 0));
  const sums = order.map(() => new Float64Array(model.N));
  for (let t = 0; t < model.N; t++) { let sum = 0; order.forEach((k, j) => { sum += model.held[k][t]; sums[j][t] = sum; }); }
  const x = Float64Array.from({ length: model.N }, (_, t) => t);
  const stepped = uPlot.paths.stepped({ align: 1 });
  const most = Math.max(model.total[model.peak], step.memory_limit_bytes || 0, step.planned_bytes);
  return place('load-chart', (element, width) => {
    const plot = new uPlot({
      width, height: width < 640 ? 260 : 340, legend: { show: false }, padding: [14, 8, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: [0, most * 1.1] } },
      axes: [axis({ values: (_, ticks) => ticks.map(v => Number.isInteger(v) ? v : '') , label: 'instruction', labelSize: 18, size: 34 }), byteAxis()],
      series: [{}, ...order.slice().reverse().map(k => ({ label: LABEL[KINDS[k]], fill: css(KINDS[k]), width: 0, paths: stepped, points: { show: false } }))],
      hooks: {
        draw: [u => {
          const ctx = u.ctx, r = devicePixelRatio;
          ctx.save();
          const mark = (t, colour, dash) => {
            const at = u.valToPos(t + .5, 'x', true);
            if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) return;
            ctx.strokeStyle = css(colour); ctx.lineWidth = 1.5 * r; ctx.setLineDash(dash.map(d => d * r));
            ctx.beginPath(); ctx.moveTo(at, u.bbox.top); ctx.lineTo(at, u.bbox.top + u.bbox.height); ctx.stroke();
          };
          mark(selected, 'ink', [3, 3]);
          ctx.restore();
          drawLine(u, step.memory_limit_bytes, 'limit ' + size(step.memory_limit_bytes));
        }],
        setCursor: [u => onHover(u.cursor.idx == null || u.cursor.left < 0 ? null : u.cursor.idx)],
        ready: [u => u.over.addEventListener('click', () => { if (u.cursor.idx != null && u.select.width === 0) onPick(u.cursor.idx); })],
      },
    }, [x, ...sums.reverse()], element);
    return plot;
  });
}

function frontierChart() {
  const points = (record.frontier ? record.frontier.points : []).slice().sort((a, b) => a.planned_bytes - b.planned_bytes);
  const known = new Map(points.map(p => [p.planned_bytes, p.predicted_ms]));
  if (!known.has(plan.unlimited_bytes) && plan.unlimited_bytes) known.set(plan.unlimited_bytes, plan.unlimited_ms);
  const curve = new Map(known);
  known.set(plan.planned_bytes, plan.predicted_ms);
  const xs = [...known.keys()].sort((a, b) => a - b);
  const low = Math.min(plan.floor_bytes || xs[0], plan.memory_limit_bytes || xs[0], xs[0]), high = Math.max(xs[xs.length - 1], plan.memory_limit_bytes && plan.memory_limit_bytes < 1.5 * xs[xs.length - 1] ? plan.memory_limit_bytes : 0);
  const slow = Math.max(...known.values());
  return place('frontier-chart', (element, width) => new uPlot({
    width, height: 260, legend: { show: false }, padding: [18, 16, 0, 0], cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false, range: [low - (high - low) * .06 - 1, high + (high - low) * .06 + 1] }, y: { range: [0, slow * 1.15 || 1] } },
    axes: [axis({ values: (_, t) => t.map(size), incrs: byteSteps, space: 90, size: 34 }), axis({ size: 64, values: (_, t) => t.map(v => v + ' ms') })],
    series: [{}, { stroke: css('parameter'), width: 2, spanGaps: true, points: { show: true, size: 7, fill: css('parameter') } }],
    hooks: { draw: [u => {
      const ctx = u.ctx, r = devicePixelRatio;
      const upright = (bytes, colour, label, dash) => {
        const at = u.valToPos(bytes, 'x', true), right = at > u.bbox.left + u.bbox.width * .7;
        ctx.save(); ctx.strokeStyle = ctx.fillStyle = css(colour); ctx.lineWidth = (dash ? 1.5 : 3) * r; ctx.setLineDash(dash ? [4 * r, 4 * r] : []);
        ctx.beginPath(); ctx.moveTo(at, u.bbox.top); ctx.lineTo(at, u.bbox.top + u.bbox.height); ctx.stroke();
        ctx.font = `600 ${12 * r}px system-ui, sans-serif`; ctx.textAlign = right ? 'right' : 'left';
        ctx.fillText(label, at + (right ? -6 : 6) * r, u.bbox.top + (dash ? u.bbox.height - 8 * r : 12 * r)); ctx.restore();
      };
      if (plan.floor_bytes) upright(plan.floor_bytes, 'quiet', 'the least ' + size(plan.floor_bytes), true);
      if (plan.memory_limit_bytes && plan.memory_limit_bytes <= high * 1.05) upright(plan.memory_limit_bytes, 'line', 'limit ' + size(plan.memory_limit_bytes), false);
      const [x, y] = [u.valToPos(plan.planned_bytes, 'x', true), u.valToPos(plan.predicted_ms, 'y', true)];
      ctx.save(); ctx.fillStyle = css('ink'); ctx.strokeStyle = css('card'); ctx.lineWidth = 3 * r;
      ctx.beginPath(); ctx.arc(x, y, 8 * r, 0, 7); ctx.fill(); ctx.stroke();
      const near = x > u.bbox.left + u.bbox.width * .6;
      ctx.font = `600 ${12 * r}px system-ui, sans-serif`; ctx.textAlign = near ? 'right' : 'left'; ctx.textBaseline = 'top';
      ctx.fillText(`this plan: ${size(plan.planned_bytes)}, ${time(plan.predicted_ms * 1e3)}`, x + (near ? -12 : 12) * r, y + 12 * r); ctx.restore();
    }] },
  }, [xs, xs.map(x => curve.has(x) ? curve.get(x) : null)], element));
}

// One small chart of the run: several curves over the number of updates.
function runChart(grid, title, xs, curves, options = {}) {
  const shown = curves.filter(c => c.values.some(v => v != null));
  if (!shown.length || xs.length === 0) return;
  const box = document.createElement('div');
  box.className = 'chart';
  const heading = document.createElement('h3');
  heading.textContent = title;
  const inner = document.createElement('div');
  box.append(heading, inner);
  grid.append(box);
  place(inner, (element, width) => new uPlot({
    width, height: 190, padding: [10, 8, 0, 0], cursor: { y: false, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: options.range ? { range: options.range } : {} },
    axes: [axis({ size: 30 }), options.bytes ? byteAxis() : axis({ size: 64, values: (_, ticks) => ticks.map(v => String(+v.toPrecision(3))) })],
    series: [{ label: options.x || 'update' }, ...shown.map(c => ({
      label: c.label, stroke: css(c.colour), width: c.width || 1.5, spanGaps: true, dash: c.dash, points: { show: xs.length < 2 || !!c.points, size: 5 },
      value: (_, v) => v == null ? '–' : options.bytes ? size(v) : options.percent ? v.toFixed(1) + ' %' : +v.toPrecision(5),
    }))],
    hooks: { draw: [u => { if (options.line != null) drawLine(u, options.line, 'limit ' + size(options.line)); }] },
  }, [xs, ...shown.map(c => c.values)], element));
}

// The arena map: instructions across, offsets up, a rectangle for every tensor's stay.

function arenaMap(onPick) {
  const canvas = document.getElementById('map-canvas'), tip = document.getElementById('map-tip');
  const detail = document.getElementById('map-detail');
  const ctx = canvas.getContext('2d');
  const all = { t0: 0, t1: Math.max(1, model.N), o0: 0, o1: Math.max(1, step.arena_bytes) };
  const map = { view: { ...all }, hits: null, chosen: -1, drawn: 0, lastMs: 0, worstMs: 0 };
  // Painted kind by kind: the brush changes nine times, not once a rectangle.
  const order = Uint32Array.from({ length: model.n }, (_, i) => i).sort((a, b) => model.kind[a] - model.kind[b] || a - b);
  const LEFT = 62, BOTTOM = 22;
  let width = 0, height = 0, ratio = 1, hatch = null, queued = false, drag = null;

  const x = t => LEFT + (t - map.view.t0) / (map.view.t1 - map.view.t0) * (width - LEFT);
  const y = o => (height - BOTTOM) * (1 - (o - map.view.o0) / (map.view.o1 - map.view.o0));
  const time_ = px => map.view.t0 + (px - LEFT) / (width - LEFT) * (map.view.t1 - map.view.t0);
  const offset_ = py => map.view.o0 + (1 - py / (height - BOTTOM)) * (map.view.o1 - map.view.o0);

  function hatched() {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 8;
    const brush = tile.getContext('2d');
    brush.strokeStyle = css('card'); brush.lineWidth = 2;
    brush.beginPath(); brush.moveTo(-2, 10); brush.lineTo(10, -2); brush.moveTo(-2, 2); brush.lineTo(2, -2); brush.moveTo(6, 10); brush.lineTo(10, 6); brush.stroke();
    return ctx.createPattern(tile, 'repeat');
  }

  function paint() {
    queued = false;
    const start = performance.now(), v = map.view;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = css('card'); ctx.fillRect(0, 0, width, height);
    ctx.save();
    ctx.beginPath(); ctx.rect(LEFT, 0, width - LEFT, height - BOTTOM); ctx.clip();
    ctx.fillStyle = css('unused'); ctx.fillRect(LEFT, 0, width - LEFT, height - BOTTOM);
    const colours = KINDS.map(css), ink = css('ink'), paper = css('card');
    const labelled = [];
    let brush = -1;
    map.drawn = 0;
    for (const i of order) {
      if (model.to[i] <= v.t0 || model.from[i] >= v.t1 || model.offset[i] + model.bytes[i] <= v.o0 || model.offset[i] >= v.o1) continue;
      const left = x(model.from[i]), right = x(model.to[i]), top = y(model.offset[i] + model.bytes[i]), bottom = y(model.offset[i]);
      const w = Math.max(right - left, .6), h = Math.max(bottom - top, .6);
      if (model.kind[i] !== brush) { brush = model.kind[i]; ctx.fillStyle = colours[brush]; }
      const hit = !map.hits || map.hits.has(i);
      ctx.globalAlpha = hit ? 1 : .15;
      ctx.fillRect(left, top, w, h);
      map.drawn++;
      if (w > 2.5 && h > 2.5) {
        if (step.tensors[i].again) { ctx.fillStyle = hatch; ctx.globalAlpha = hit ? .55 : .1; ctx.fillRect(left, top, w, h); ctx.fillStyle = colours[brush]; ctx.globalAlpha = hit ? 1 : .15; }
        ctx.strokeStyle = paper; ctx.lineWidth = .7; ctx.strokeRect(left, top, w, h);
      }
      if (map.hits && hit) { ctx.strokeStyle = ink; ctx.lineWidth = 1.4; ctx.strokeRect(left, top, w, h); }
      if (w > 46 && h > 13 && hit) labelled.push(i);
    }
    ctx.globalAlpha = 1;
    if (map.chosen >= 0) {
      const i = map.chosen;
      ctx.strokeStyle = ink; ctx.lineWidth = 2.5;
      ctx.strokeRect(x(model.from[i]), y(model.offset[i] + model.bytes[i]), Math.max(2, x(model.to[i]) - x(model.from[i])), Math.max(2, y(model.offset[i]) - y(model.offset[i] + model.bytes[i])));
    }
    ctx.font = '11px system-ui, sans-serif'; ctx.textBaseline = 'middle'; ctx.textAlign = 'left';
    for (const i of labelled) {
      const left = Math.max(x(model.from[i]), LEFT), right = Math.min(x(model.to[i]), width);
      const top = Math.max(0, y(model.offset[i] + model.bytes[i])), bottom = Math.min(height - BOTTOM, y(model.offset[i]));
      const room = Math.floor((right - left - 8) / 6);
      if (room < 5 || bottom - top < 12) continue;
      let text = (step.tensors[i].again ? '↻ ' : step.tensors[i].kind === 'other' ? '⧉ ' : '') + (step.names[step.tensors[i].layer] || nameOf(i));
      if (text.length > room) text = text.slice(0, room - 1) + '…';
      ctx.fillStyle = '#fff'; ctx.shadowColor = 'rgba(0,0,0,.55)'; ctx.shadowBlur = 2;
      ctx.fillText(text, left + 5, (top + bottom) / 2);
    }
    ctx.shadowBlur = 0;
    const now = x(selected + .5);
    ctx.strokeStyle = ink; ctx.setLineDash([3, 3]); ctx.lineWidth = 1.2;
    ctx.beginPath(); ctx.moveTo(now, 0); ctx.lineTo(now, height); ctx.stroke(); ctx.setLineDash([]);
    if (drag && drag.moved) {
      ctx.fillStyle = css('focus'); ctx.globalAlpha = .2;
      ctx.fillRect(Math.min(drag.x, drag.px), Math.min(drag.y, drag.py), Math.abs(drag.x - drag.px), Math.abs(drag.y - drag.py));
      ctx.globalAlpha = 1;
    }
    ctx.restore();
    scales(v);
    map.lastMs = performance.now() - start;
    map.worstMs = Math.max(map.worstMs, map.lastMs);
  }

  function scales(v) {
    ctx.fillStyle = css('quiet'); ctx.font = '11px system-ui, sans-serif';
    ctx.textAlign = 'right'; ctx.textBaseline = 'middle';
    const grain = 2 ** Math.ceil(Math.log2((v.o1 - v.o0) / 6));
    for (let o = Math.ceil(v.o0 / grain) * grain; o <= v.o1; o += grain) ctx.fillText(o === 0 ? '0' : size(o), LEFT - 6, Math.min(height - BOTTOM - 6, Math.max(7, y(o))));
    ctx.textAlign = 'center'; ctx.textBaseline = 'top';
    const tens = 10 ** Math.floor(Math.log10(Math.max(1, (v.t1 - v.t0) / 4)));
    const every = [1, 2, 5, 10].map(m => m * tens).find(s => (v.t1 - v.t0) / s <= 8) || tens * 10;
    for (let t = Math.ceil(v.t0 / every) * every; t < v.t1; t += every) ctx.fillText(t, Math.max(LEFT + 10, x(t)), height - BOTTOM + 5);
  }

  function draw() { if (!queued) { queued = true; requestAnimationFrame(paint); } }

  function fit() {
    ratio = devicePixelRatio || 1;
    width = canvas.clientWidth; height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    hatch = hatched();
    draw();
  }

  function look(view) {
    const t = Math.min(Math.max(view.t1 - view.t0, 2), all.t1), o = Math.min(Math.max(view.o1 - view.o0, 64), all.o1);
    const t0 = Math.min(Math.max(view.t0, 0), all.t1 - t), o0 = Math.min(Math.max(view.o0, 0), all.o1 - o);
    map.view = { t0, t1: t0 + t, o0, o1: o0 + o };
    draw();
  }
  function zoom(factor, px = (width + LEFT) / 2, py = (height - BOTTOM) / 2) {
    const v = map.view, t = time_(px), o = offset_(py);
    look({ t0: t - (t - v.t0) * factor, t1: t + (v.t1 - t) * factor, o0: o - (o - v.o0) * factor, o1: o + (v.o1 - o) * factor });
  }
  function move(dt, dof) {
    const v = map.view, t = (v.t1 - v.t0) * dt, o = (v.o1 - v.o0) * dof;
    look({ t0: v.t0 + t, t1: v.t1 + t, o0: v.o0 + o, o1: v.o1 + o });
  }

  function at(px, py) {
    const t = time_(px), o = offset_(py);
    for (let i = model.n - 1; i >= 0; i--) if (model.from[i] <= t && t < model.to[i] && model.offset[i] <= o && o < model.offset[i] + model.bytes[i]) return i;
    return -1;
  }
  function words(i) {
    const t = step.tensors[i];
    return [titleOf(i) + (t.again ? ' (computed again)' : ''), `${t.kind} ${typeOf(t)}, ${size(t.bytes)}`,
      `offset ${size(t.offset)}, instructions ${t.from}–${t.to - 1}`, site(t.site)].filter(Boolean);
  }
  function choose(i) {
    map.chosen = i;
    detail.textContent = i < 0 ? '' : words(i).join(' · ');
    draw();
  }
  function show(i) {
    const t = Math.max(4, model.to[i] - model.from[i]), o = model.bytes[i];
    choose(i);
    look({ t0: model.from[i] - t * .6, t1: model.to[i] + t * .6, o0: model.offset[i] - o * 1.2, o1: model.offset[i] + o * 2.2 });
  }
  function find(text) {
    const wanted = text.trim().toLowerCase();
    const hits = [];
    if (wanted) for (let i = 0; i < model.n; i++) {
      const t = step.tensors[i];
      if (titleOf(i).toLowerCase().includes(wanted) || t.kind.includes(wanted) || site(t.site).toLowerCase().includes(wanted)) hits.push(i);
    }
    map.hits = wanted ? new Set(hits) : null;
    draw();
    return hits;
  }

  const point = e => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
  canvas.addEventListener('pointermove', e => {
    const [px, py] = point(e);
    if (drag) {
      [drag.px, drag.py] = [px, py];
      drag.moved = drag.moved || Math.hypot(px - drag.x, py - drag.y) > 6;
      draw();
      return;
    }
    const i = px > LEFT && py < height - BOTTOM ? at(px, py) : -1;
    tip.hidden = i < 0;
    if (i >= 0) {
      tip.replaceChildren(...words(i).map(w => { const line = document.createElement('div'); line.textContent = w; return line; }));
      tip.style.left = Math.max(0, Math.min(px + 14, width - 300)) + 'px';
      tip.style.top = (py > height - 130 ? py - 100 : py + 14) + 'px';
    }
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('pointerdown', e => {
    const [px, py] = point(e);
    if (e.pointerType === 'mouse' && e.button === 0) { drag = { x: px, y: py, px, py, moved: false }; canvas.setPointerCapture(e.pointerId); tip.hidden = true; }
  });
  canvas.addEventListener('pointerup', () => {
    const box = drag;
    drag = null;
    if (box && box.moved) {
      const t = [time_(box.x), time_(box.px)].sort((a, b) => a - b), o = [offset_(box.y), offset_(box.py)].sort((a, b) => a - b);
      look({ t0: t[0], t1: t[1], o0: o[0], o1: o[1] });
      map.zoomed = true;
    }
  });
  canvas.addEventListener('click', e => {
    if (map.zoomed) { map.zoomed = false; return; }
    const [px, py] = point(e);
    choose(at(px, py));
    onPick(Math.min(model.N - 1, Math.max(0, Math.floor(time_(px)))));
  });
  canvas.addEventListener('dblclick', () => look(all));
  canvas.addEventListener('wheel', e => {
    // Without Ctrl the wheel scrolls the page, as everywhere.
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const [px, py] = point(e);
    zoom(Math.exp(e.deltaY / 400), px, py);
  }, { passive: false });
  canvas.addEventListener('keydown', e => {
    const keys = {
      ArrowLeft: () => move(-.15, 0), ArrowRight: () => move(.15, 0), ArrowUp: () => move(0, .15), ArrowDown: () => move(0, -.15),
      '+': () => zoom(.6), '=': () => zoom(.6), '-': () => zoom(1 / .6), 0: () => look(all), Escape: () => { choose(-1); look(all); },
    };
    if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
  });
  document.getElementById('zoom-in').addEventListener('click', () => zoom(.6));
  document.getElementById('zoom-out').addEventListener('click', () => zoom(1 / .6));
  document.getElementById('zoom-all').addEventListener('click', () => { choose(-1); look(all); });
  new ResizeObserver(fit).observe(canvas);
  fit();
  return Object.assign(map, { draw, fit, look, zoom, show, find, at, x, y, paint });
}

// Pictures on canvases: a panel with points and a boundary, and charts of lines.

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The canvas's pen in units of a CSS pixel, on a blank sheet, and the size of the sheet. */
function blank(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width, height };
}

const rgb = colour => [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));

/** Scores that the server sent: float32 numbers, row by row from below. */
export function decode(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Points, regions and boundary of one arm; the points of the last step ringed. */
export function drawPanel(canvas, frame, arm) {
  const { pen, width, height } = blank(canvas);
  const scores = decode(arm.scores), side = Math.round(Math.sqrt(scores.length));
  const colours = [style("--zero"), style("--one")], ink = style("--ink"), paper = style("--paper");
  const [x0, y0, x1, y1] = frame.view;
  const place = (x, y) => [(x - x0) / (x1 - x0) * width, (y1 - y) / (y1 - y0) * height];

  drawRegions(pen, scores, side, colours.map(rgb), width, height);
  drawBoundary(pen, scores, side, ink, width, height);

  const size = Math.max(1.8, Math.min(3.2, width / 110)) * (frame.n > 500 ? 0.8 : 1);
  const drawn = new Set(frame.batch), kept = new Set(arm.kept);
  const dot = (i, radius) => {
    const [x, y, label] = frame.points[i];
    pen.fillStyle = colours[label];
    pen.beginPath();
    pen.arc(...place(x, y), radius, 0, 2 * Math.PI);
    pen.fill();
  };
  pen.globalAlpha = drawn.size ? 0.4 : 0.9;
  frame.points.forEach((_, i) => drawn.has(i) || dot(i, size));
  pen.globalAlpha = 1;
  for (const i of drawn) if (!kept.has(i)) dot(i, size);
  for (const i of kept) {
    const [x, y] = frame.points[i];
    pen.fillStyle = paper;
    pen.strokeStyle = ink;
    pen.lineWidth = 1.4;
    pen.beginPath();
    pen.arc(...place(x, y), size + 2.2, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
    dot(i, size);
  }
  if (arm.diverged !== null) say(pen, `diverged at step ${arm.diverged}: lower the rate`, width, height, ink, paper);
  else if (!frame.n) say(pen, "click or drag to draw points", width, height, ink, paper);
}

function say(pen, text, width, height, ink, paper) {
  pen.font = `${width < 220 ? 13 : 15}px system-ui, sans-serif`;
  const wide = Math.min(pen.measureText(text).width + 20, width);
  pen.globalAlpha = 0.85;
  pen.fillStyle = paper;
  pen.fillRect((width - wide) / 2, height / 2 - 16, wide, 32);
  pen.globalAlpha = 1;
  pen.fillStyle = ink;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, width / 2, height / 2, width - 12);
}

/** The colour of the class that leads, the stronger the surer. */
function drawRegions(pen, scores, side, colours, width, height) {
  const image = new ImageData(side, side);
  for (let row = 0; row < side; row++) for (let column = 0; column < side; column++) {
    const score = scores[row * side + column], at = 4 * ((side - 1 - row) * side + column);
    const colour = colours[score > 0 ? 1 : 0];
    for (let part = 0; part < 3; part++) image.data[at + part] = colour[part];
    image.data[at + 3] = 255 * (0.07 + 0.23 * Math.abs(Math.tanh(score / 2)));
  }
  const small = new OffscreenCanvas(side, side);
  small.getContext("2d").putImageData(image, 0, 0);
  const cell = width / (side - 1), tall = height / (side - 1); // a pixel's middle is its place on the grid
  pen.imageSmoothingEnabled = true;
  pen.drawImage(small, -cell / 2, -tall / 2, width + cell, height + tall);
}

/** Where the score is 0: in every cell of the grid, a straight line between the crossings on its edges. */
function drawBoundary(pen, scores, side, ink, width, height) {
  const x = column => column / (side - 1) * width, y = row => height - row / (side - 1) * height;
  pen.strokeStyle = ink;
  pen.lineWidth = 2;
  pen.lineCap = "round";
  pen.beginPath();
  for (let r = 0; r + 1 < side; r++) for (let c = 0; c + 1 < side; c++) {
    const corners = [[c, r], [c + 1, r], [c + 1, r + 1], [c, r + 1]];
    const crossings = [];
    for (let edge = 0; edge < 4; edge++) {
      const [c1, r1] = corners[edge], [c2, r2] = corners[(edge + 1) % 4];
      const a = scores[r1 * side + c1], b = scores[r2 * side + c2];
      if ((a > 0) === (b > 0)) continue;
      const t = a / (a - b);
      crossings.push([x(c1 + t * (c2 - c1)), y(r1 + t * (r2 - r1))]);
    }
    for (let k = 0; k + 1 < crossings.length; k += 2) {
      pen.moveTo(...crossings[k]);
      pen.lineTo(...crossings[k + 1]);
    }
  }
  pen.stroke();
}

const short = value => value === 0 ? "0" : Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(0)
  : String(Number(value.toPrecision(3)));

/** Round numbers from low to high, about so many. */
function roundTicks(low, high, about) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(m => m * power >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high * (1 + 1e-9); tick += step) ticks.push(tick);
  return ticks;
}

/** 1, 2 and 5 times the powers of ten from low to high; of many, the powers alone. */
function decadeTicks(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const m of [1, 2, 5]) all.push([m, m * 10 ** power]);
  const inside = all.filter(([, tick]) => tick >= low && tick <= high);
  return (inside.length > 6 ? inside.filter(([m]) => m === 1) : inside).map(([, tick]) => tick);
}

/** Lines `{x, y, colour, dash, name}` over axes; `log` for a logarithmic y. */
export function drawChart(canvas, lines, { xlabel, log = false, top = null }) {
  const { pen, width, height } = blank(canvas);
  const soft = style("--soft"), faint = style("--line");
  const box = { left: 46, right: width - 8, top: 8, bottom: height - 36 };
  const xs = lines.flatMap(line => line.x), ys = lines.flatMap(line => line.y).filter(y => y !== null && (!log || y > 0));
  const lowX = Math.min(...xs, Infinity), farX = Math.max(...xs, -Infinity);
  const xlow = xs.length ? lowX : 0, xhigh = xs.length && farX > lowX ? farX : xlow + 1;
  let low = log ? Math.max(1e-6, Math.min(...ys, 1) * 0.8) : 0;
  const high = top ?? (Math.max(...ys, log ? low * 2 : 1e-9) * (log ? 1.25 : 1.08));
  if (log && high / low < 4) low = high / 4;
  const scale = log ? Math.log : v => v;
  const toX = x => box.left + (x - xlow) / (xhigh - xlow) * (box.right - box.left);
  const toY = y => box.bottom - (scale(Math.max(y, low)) - scale(low)) / (scale(high) - scale(low)) * (box.bottom - box.top);

  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = soft;
  pen.strokeStyle = faint;
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const tick of log ? decadeTicks(low, high) : roundTicks(low, high, 4)) {
    pen.fillText(short(tick), box.left - 6, toY(tick));
    pen.beginPath();
    pen.moveTo(box.left, toY(tick));
    pen.lineTo(box.right, toY(tick));
    pen.stroke();
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const tick of roundTicks(xlow, xhigh, 4).filter(tick => Number.isInteger(tick) && tick <= xhigh)) {
    pen.fillText(String(tick), Math.min(toX(tick), box.right - 8), box.bottom + 4);
  }
  pen.fillText(xlabel, (box.left + box.right) / 2, box.bottom + 20);
  for (const line of lines) drawLine(pen, line, toX, toY);
}

function drawLine(pen, line, toX, toY) {
  pen.strokeStyle = line.colour;
  pen.lineWidth = 2;
  pen.lineJoin = "round";
  pen.setLineDash(line.dash ?? []);
  pen.beginPath();
  let down = false;
  line.x.forEach((x, i) => {
    if (line.y[i] === null) { down = false; return; }
    if (down) pen.lineTo(toX(x), toY(line.y[i]));
    else pen.moveTo(toX(x), toY(line.y[i]));
    down = true;
  });
  pen.stroke();
  pen.setLineDash([]);
}

/** The colour and the dashes of an arm, as the charts and the words have them. */
export const lineOf = arm => ({ colour: style(`--${arm}`), dash: arm === "random" ? [6, 4] : [] });

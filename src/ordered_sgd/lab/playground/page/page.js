// The controls, the points drawn by hand, and the talk with the server: one request at a time, each answered by a frame.

import { drawChart, drawPanel, lineOf } from "./draw.js";

const byId = id => document.getElementById(id);
const ARMS = ["sgd", "ordered", "random"];
const LONGEST = 600; // points of a curve: of more, every other one is left out
const described = await (await fetch("settings")).json();
const settings = { ...Object.values(described.proposed)[0], points: [] };
const [, mostPoints] = described.bounds.points;
let session = null, frame = null, curves = newCurves();
let running = false, busy = false, waiting = { steps: 0, reset: false, ask: false };

function newCurves() {
  return { step: [], mean: Object.fromEntries(ARMS.map(a => [a, []])), ordered: Object.fromEntries(ARMS.map(a => [a, []])) };
}

// ---- the talk with the server

/** Ask for a frame as soon as the last answer is in; wishes that come meanwhile go into one request. */
async function ask() {
  if (busy) return;
  busy = true;
  while (running || waiting.ask) {
    const steps = waiting.steps || (running ? Number(byId("speed").value) : 0), reset = waiting.reset;
    waiting = { steps: 0, reset: false, ask: false };
    try {
      const answer = await fetch("train", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ session, settings, steps, reset }) });
      const content = await answer.json();
      if (!answer.ok) throw new Error(content.error);
      take(content);
      complain(null);
    } catch (error) {
      run(false);
      complain(error instanceof TypeError ? "The playground does not answer. Is `osgd playground` still running?" : error.message);
    }
    if (running) await new Promise(requestAnimationFrame); // a page that nobody sees does not train
  }
  busy = false;
}

function want(wish = {}) {
  waiting = { steps: wish.steps ?? waiting.steps, reset: wish.reset ?? waiting.reset, ask: true };
  ask();
}

function take(content) {
  const anew = content.session !== session || frame === null || content.step < frame.step || content.step === 0;
  if (anew) curves = newCurves();
  session = content.session;
  frame = content;
  remember();
  draw();
  if (running && !frame.n) run(false); // nothing to train on until points are drawn
}

/** A point for every curve; if the step is that of the last one, in its place: a slider moved. */
function remember() {
  if (curves.step.at(-1) === frame.step) for (const list of lists()) list.pop();
  curves.step.push(frame.step);
  for (const arm of ARMS) for (const loss of ["mean", "ordered"]) curves[loss][arm].push(frame.arms[arm][loss]);
  if (curves.step.length <= LONGEST) return;
  for (const list of lists()) list.splice(0, list.length, ...list.filter((_, i) => i % 2 === 0 || i === list.length - 1));
}

const lists = () => [curves.step, ...ARMS.flatMap(arm => [curves.mean[arm], curves.ordered[arm]])];

function complain(text) {
  byId("fault").hidden = !text;
  byId("fault").textContent = text ?? "";
}

// ---- what is shown

function draw() {
  if (!frame) return;
  document.body.dataset.step = frame.step;
  document.body.dataset.problem = settings.problem;
  byId("steps").textContent = `step ${frame.step} · n = ${frame.n}`;
  for (const panel of document.querySelectorAll(".panel")) {
    const arm = frame.arms[panel.dataset.arm];
    drawPanel(panel.querySelector("canvas"), frame, arm);
    panel.querySelector("figcaption span").textContent = arm.mean === null ? "" :
      `${(100 * arm.right).toFixed(1)} % right · L ${arm.mean.toFixed(3)} · L_q ${arm.ordered.toFixed(3)}`;
  }
  for (const loss of ["mean", "ordered"]) {
    const lines = ARMS.map(arm => ({ x: curves.step, y: curves[loss][arm], ...lineOf(arm) }));
    drawChart(byId(loss === "mean" ? "mean" : "ordered_loss"), lines, { xlabel: "step", log: true });
  }
  drawGamma();
}

function drawGamma() {
  const { n, s, q, gamma } = frame;
  const flat = (arm, chance) => ({ x: n ? [1, n] : [], y: n ? [chance, chance] : [], ...lineOf(arm) });
  const lines = [flat("sgd", s / n), flat("random", q / n), { x: gamma.rank, y: gamma.ordered, ...lineOf("ordered") }];
  drawChart(byId("gamma"), lines, { xlabel: "rank j of the loss, 1 = the largest", top: n ? 1.1 * s / n : 1 });
  byId("meaning").textContent = !n ? "" : `n = ${n}, s = ${s}, q = ${q}: ordered SGD uses each of the ${q} hardest points ` +
    `in ${percent(s / n)} of the steps, as SGD does` + (s > q ? `, and the ${s - q} easiest never` : "") +
    `; a random q uses every point in ${percent(q / n)}.`;
}

const percent = share => `${Number((100 * share).toPrecision(2))} %`;

// ---- the controls

function fill(name) {
  const select = byId(name);
  for (const [value, text] of Object.entries(described.choices[name])) select.add(new Option(text, value));
  select.addEventListener("change", () => {
    settings[name] = select.value;
    if (name === "problem") begin(select.value);
    want();
  });
}

/** Another problem: paused, without points drawn by hand, with the settings proposed for it. */
function begin(problem) {
  run(false);
  Object.assign(settings, described.proposed[problem], { seed: settings.seed, points: [] });
  show();
}

/** The controls as the settings are; q is at most s. */
function show() {
  settings.q = Math.min(settings.q, settings.s);
  byId("q").max = settings.s;
  byId("lr").value = Math.log10(settings.lr);
  for (const name of ["problem", "model", "optimizer", "s", "q"]) byId(name).value = settings[name];
  for (const name of ["s", "q", "lr"]) byId(`${name}-value`).textContent = settings[name];
  byId("speed-value").textContent = byId("speed").value;
}

function slide(name, value, bounds = described.bounds[name]) {
  const input = byId(name);
  [input.min, input.max] = bounds;
  input.addEventListener("input", () => {
    if (name !== "speed") settings[name] = value(input.value);
    show();
    if (name !== "speed") want();
  });
}

function run(on) {
  running = on;
  byId("run").textContent = on ? "Pause" : "Start";
  byId("one").disabled = on;
  if (on) ask();
}

function connect() {
  for (const name of Object.keys(described.choices)) fill(name);
  slide("s", Number);
  slide("q", Number);
  slide("lr", power => Number((10 ** power).toPrecision(2)), described.bounds.lr.map(Math.log10));
  slide("speed", Number, [1, described.bounds.steps[1]]);
  byId("speed").value = 2;
  show();
  byId("run").addEventListener("click", () => run(!running));
  byId("one").addEventListener("click", () => want({ steps: 1 }));
  byId("reset").addEventListener("click", () => want({ reset: true }));
  byId("redraw").addEventListener("click", () => {
    settings.seed = (settings.seed + 1) % (described.bounds.seed[1] + 1);
    want();
  });
  byId("clear").addEventListener("click", () => { settings.points = []; want(); });
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// ---- points drawn by hand

const tool = () => document.querySelector("[name=tool]:checked").value;

function placeOf(canvas, event) {
  const box = canvas.getBoundingClientRect(), [x0, y0, x1, y1] = frame.view;
  const x = x0 + (event.clientX - box.left) / box.width * (x1 - x0), y = y1 - (event.clientY - box.top) / box.height * (y1 - y0);
  return { x: Number(x.toFixed(3)), y: Number(y.toFixed(3)), unit: (x1 - x0) / box.width };
}

function mark(canvas, event, last) {
  const { x, y, unit } = placeOf(canvas, event), [x0, y0, x1, y1] = frame.view;
  if (x < x0 || x > x1 || y < y0 || y > y1) return last; // the stroke has left the picture
  const near = (point, pixels) => point && Math.hypot(point[0] - x, point[1] - y) < pixels * unit;
  if (tool() === "erase") {
    const left = settings.points.filter(point => !near(point, 12));
    if (left.length === settings.points.length) return last;
    settings.points = left;
  } else {
    if (near(last, 9)) return last; // a stroke is a row of points, not a line
    if (settings.points.length >= mostPoints) {
      complain(`${mostPoints} points of your own are the most: erase some.`);
      return last;
    }
    settings.points = [...settings.points, [x, y, Number(tool())]];
  }
  want();
  return [x, y];
}

for (const canvas of document.querySelectorAll(".panel canvas")) {
  let last = null, down = false;
  canvas.addEventListener("pointerdown", event => {
    if (event.button !== 0 || !frame) return;
    down = true;
    last = mark(canvas, event, null);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => { if (down) last = mark(canvas, event, last); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { down = false; });
}

connect();
want();

// Hover and zoom, by uPlot, over charts that are whole without either.
//
// A chart stays the SVG that it is. uPlot lies over it, made when a pointer or the keyboard first
// comes: it follows the pointer, and takes the part that is dragged over. Only a chart that is
// zoomed is drawn on uPlot's canvas, from the very shapes and colours of the SVG.
(() => {
  "use strict";
  const WIDTH = 360, LETTERS = 11, NEAR = 10, APART = 12, LIKE_LINEAR = 8;

  const count = (value, step) => {
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  };
  // As the functions of axes.py write a value, to as many digits as a step asks for.
  const TOLD = {
    whole: count,
    share: (value, step) => `${count(100 * value, 100 * step)} %`,
    seconds: (value, step) =>
      Math.abs(value) < 1 ? `${count(1e3 * value, 1e3 * step)} ms` : `${count(value, step)} s`,
    milliseconds: (value, step) => TOLD.seconds(value / 1e3, step / 1e3),
    times_as_long: (value, step) => `${count(value, step)}x`,
  };

  // An axis as the SVG was drawn with it: where its ends lie, and what they mean.
  const axisOf = (text) => {
    const [begin, end, low, high] = text.split(" ").map(Number);
    const [, , , , kind, name] = text.split(" ");
    const isLog = kind === "log", told = TOLD[name];
    const value = (place) => {
      const part = (place - begin) / (end - begin);
      return isLog ? low * (high / low) ** part : low + part * (high - low);
    };
    const fine = (at) => (isLog ? at : high - low) / 1000;
    return { begin, end, low, high, isLog, told, value, said: (at) => told(at, fine(at)) };
  };

  const splits = (isLog, low, high, most) => {
    const found = [];
    if (isLog && high > LIKE_LINEAR * low) {
      const base = high > 1000 * low ? [1] : [1, 2, 5];
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
        found.push(...base.map((one) => one * 10 ** power));
      }
      return found.filter((one) => one >= low && one <= high);
    }
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = power * [1, 2, 5, 10].find((one) => one * power * most >= (high - low) * 0.999);
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high; at++) found.push(at * step);
    return found;
  };

  // The points of a path, which chart.py writes as "M x y" and then steps "l dx dy".
  const pointsOf = (path) => {
    const found = [];
    let x = 0, y = 0;
    for (const [, pen, one, other] of path.matchAll(/([Ml])(\S+) ([^Ml]+)/g)) {
      [x, y] = pen === "M" ? [+one, +other] : [x + +one, y + +other];
      found.push([x, y]);
    }
    return found;
  };

  const number = (shape, name) => Number(shape.getAttribute(name));
  const outline = (shape) => {
    const of = (name) => number(shape, name);
    switch (shape.tagName) {
      case "path": return shape.getAttribute("d");
      case "line": return `M${of("x1")} ${of("y1")}L${of("x2")} ${of("y2")}`;
      default: return `M${of("x")} ${of("y")}h${of("width")}v${of("height")}h${-of("width")}z`;
    }
  };

  const alive = (chart) => {
    const svg = chart.querySelector("svg"), told = chart.querySelector("output");
    const x = axisOf(svg.dataset.x), y = axisOf(svg.dataset.y);
    const whole = { x: [x.low, x.high], y: [y.low, y.high] };
    const over = svg.querySelector(".axis")?.textContent ?? "";
    const lines = [...svg.querySelectorAll(".line")].map((shape) => ({
      shape, here: document.createElement("i"), name: shape.dataset.name ?? "",
      points: pointsOf(shape.getAttribute("d")),
    })).filter((one) => one.points.length);
    const dots = [...svg.querySelectorAll(".dot")].map((shape) => ({
      at: [number(shape, "cx"), number(shape, "cy")],
      text: shape.parentNode.querySelector("title")?.textContent,
    }));
    const stops = [...new Set([...lines.flatMap((one) => one.points), ...dots.map((one) => one.at)]
      .map(([at]) => at))].sort((one, other) => one - other);
    let plot = null, shown = whole, scale = 1;

    // From the SVG's places to those of uPlot: on its canvas, or of its elements in the plot.
    const moved = (u, onCanvas) => {
      const along = (axis, name) => {
        const [low, high] = [axis.low, axis.high].map((one) => u.valToPos(one, name, onCanvas));
        const by = (high - low) / (axis.end - axis.begin);
        return [by, low - by * axis.begin];
      };
      const [[kx, tx], [ky, ty]] = [along(x, "x"), along(y, "y")];
      return { kx, tx, ky, ty, x: (at) => kx * at + tx, y: (at) => ky * at + ty };
    };

    const draw = (u) => {
      const { ctx, bbox } = u, to = moved(u, true), size = scale * devicePixelRatio;
      const matrix = new DOMMatrix([to.kx, 0, 0, to.ky, to.tx, to.ty]);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const shape of svg.querySelectorAll(".stretch,.area,.mark,.whisker,.line,.dot")) {
        const style = getComputedStyle(shape), path = new Path2D();
        if (shape.tagName === "circle") {
          const [cx, cy] = [to.x(number(shape, "cx")), to.y(number(shape, "cy"))];
          path.arc(cx, cy, size * number(shape, "r"), 0, 2 * Math.PI);
        } else {
          path.addPath(new Path2D(outline(shape)), matrix);
        }
        ctx.globalAlpha = style.opacity;
        ctx.fillStyle = style.fill;
        ctx.strokeStyle = style.stroke;
        ctx.lineWidth = size * parseFloat(style.strokeWidth);
        ctx.setLineDash((style.strokeDasharray.match(/[\d.]+/g) ?? []).map((one) => one * size));
        if (style.fill !== "none") ctx.fill(path);
        if (style.stroke !== "none") ctx.stroke(path);
      }
      ctx.restore();
      names(u, to, size);
    };

    const names = (u, to, size) => {
      const { ctx, bbox } = u, [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
      ctx.save();
      const write = (shape, at, height) => {
        const style = getComputedStyle(shape);
        ctx.font = `${style.fontWeight} ${LETTERS * size}px ${style.fontFamily}`;
        ctx.fillStyle = style.fill;
        ctx.textAlign = { middle: "center" }[shape.getAttribute("text-anchor")] ?? "start";
        ctx.fillText(shape.textContent, at, height);
      };
      // The axis keeps its name; names of marks go with them, along or up, while they are seen.
      for (const shape of svg.querySelectorAll(".axis,.label:not(.end)")) {
        const [at, height] = [number(shape, "x"), number(shape, "y")];
        if (height > y.begin) write(shape, at * size, height * size);
        else if (height >= y.end && to.y(height) > bbox.top && to.y(height) < bottom) {
          write(shape, at * size, to.y(height));
        } else if (height < y.end && to.x(at) >= bbox.left && to.x(at) <= right) {
          write(shape, to.x(at), height * size);
        }
      }
      // Names of lines stand where these leave the plot, none over another.
      const ends = [...svg.querySelectorAll(".end")].map((shape) => {
        const line = lines.find((one) => one.name === shape.textContent);
        const last = line?.points.findLast(([at]) => to.x(at) <= right + 1);
        return { shape, height: last ? to.y(last[1]) : -1 };
      }).filter((one) => one.height >= bbox.top && one.height <= bottom)
        .sort((one, other) => other.height - one.height);
      let free = bottom;
      for (const { shape, height } of ends) {
        free = Math.min(height, free);
        write(shape, right + 5 * size, free + 3.5 * size);
        free -= APART * size;
      }
      ctx.restore();
    };

    const nearest = (places, at) =>
      places.reduce((one, other) => (Math.abs(other - at) < Math.abs(one - at) ? other : one));

    const tell = (u) => {
      const { left, top } = u.cursor, to = moved(u, false);
      const isInside = left >= 0 && (lines.length || dots.length);
      told.hidden = !isInside;
      for (const one of lines) one.here.hidden = true;
      if (!isInside) return;
      // What every line has at the stop that is nearest: a line keeps its value until its next point.
      const stop = nearest(stops, (left - to.tx) / to.kx), rows = [];
      if (lines.length) rows.push(`${over} ${x.said(x.value(stop))}`);
      for (const { here, name, points } of lines) {
        const [, height] = points.findLast(([at]) => at <= stop + 0.005) ?? points[0];
        rows.push(`${name} ${y.said(y.value(height))}`);
        here.hidden = to.y(height) < 0 || to.y(height) > u.over.clientHeight;
        here.style.transform = `translate(${to.x(stop)}px, ${to.y(height)}px)`;
      }
      for (const { at: [cx, cy], text } of dots) {
        if (text && Math.hypot(to.x(cx) - left, to.y(cy) - top) < NEAR) rows.push(text);
      }
      told.textContent = rows.map((one) => one.trim()).join("\n");
      const isRight = left > u.over.clientWidth / 2;
      const from = u.over.offsetLeft + u.root.offsetLeft + left;
      told.style.left = isRight ? "" : `${from + NEAR}px`;
      told.style.right = isRight ? `${chart.clientWidth - from + NEAR}px` : "";
      told.style.top = `${chart.clientHeight - LETTERS * scale}px`;  // below, where no data is
    };

    const show = (u, range) => u.batch(() => {
      for (const name of ["x", "y"]) u.setScale(name, { min: range[name][0], max: range[name][1] });
    });
    const seen = (u) => {
      shown = { x: [u.scales.x.min, u.scales.x.max], y: [u.scales.y.min, u.scales.y.max] };
      const isWhole = ["x", "y"].every((name) => shown[name].every((one, end) =>
        Math.abs(one - whole[name][end]) <= 1e-9 * Math.abs(whole[name][1])));
      chart.classList.toggle("zoomed", !isWhole);
    };

    const begin = () => {
      if (plot) plot.destroy();
      const box = svg.getScreenCTM(), frame = chart.getBoundingClientRect();
      scale = box.a;
      const height = scale * svg.viewBox.baseVal.height;
      const style = getComputedStyle(svg.querySelector(".tick") ?? svg);
      const axis = (one, side, size) => ({
        side, size, gap: 4, font: `${LETTERS * scale}px ${style.fontFamily}`,
        stroke: () => getComputedStyle(svg.querySelector(".tick") ?? svg).fill,
        grid: { show: side === 3, width: 1,
                stroke: () => getComputedStyle(svg.querySelector(".grid") ?? svg).stroke },
        ticks: { show: false }, filter: (_, found) => found,
        splits: (_, __, low, high) => splits(one.isLog, low, high, side === 3 ? 4 : 5),
        values: (_, found) =>
          found.map((at) => one.told(at, one.isLog ? at / 100 : found[1] - found[0] || 1)),
      });
      const along = (name) => ({
        time: false, auto: false, distr: { x, y }[name].isLog ? 3 : 1,
        min: shown[name][0], max: shown[name][1], range: (_, low, high) => [low, high],
      });
      plot = new uPlot({
        width: scale * WIDTH, height, legend: { show: false },
        padding: [scale * y.end, scale * (WIDTH - x.end), 0, 0],
        cursor: { points: { show: false }, drag: { x: true, y: true, uni: 24, dist: 5 },
                  bind: { dblclick: (u) => () => show(u, whole) } },
        scales: { x: along("x"), y: along("y") },
        series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
        axes: [axis(x, 2, height - scale * y.begin), axis(y, 3, scale * x.begin)],
        hooks: { draw: [draw], setCursor: [tell], setScale: [seen] },
      }, [whole.x, whole.y], chart);
      plot.root.style.left = `${box.e - frame.left}px`;
      plot.root.style.top = `${box.f - frame.top}px`;
      for (const { here, shape } of lines) {
        here.hidden = true;
        here.style.background = getComputedStyle(shape).stroke;
        plot.over.append(here);
      }
    };

    const keys = {
      ArrowLeft: (at) => stops.findLast((one) => one < at - 0.05),
      ArrowRight: (at) => stops.find((one) => one > at + 0.05),
    };
    chart.addEventListener("keydown", (event) => {
      if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const { left } = plot.cursor, to = moved(plot, false);
      const at = left >= 0 ? (left - to.tx) / to.kx : x.begin - 1;
      if (event.key in keys) {
        const stop = keys[event.key](at);
        if (stop !== undefined) plot.setCursor({ left: to.x(stop), top: plot.over.clientHeight / 2 });
      } else if (event.key === "+" || event.key === "-") {
        const middle = left >= 0 ? left : plot.over.clientWidth / 2;
        const half = plot.over.clientWidth * (event.key === "+" ? 0.25 : 1);
        const ends = [middle - half, middle + half].map((one) => plot.posToVal(one, "x"));
        show(plot, { x: [Math.max(x.low, ends[0]), Math.min(x.high, ends[1])], y: shown.y });
      } else if (event.key === "Escape") {
        plot.setCursor({ left: -10, top: -10 });
        show(plot, whole);
      } else {
        return;
      }
      event.preventDefault();
    });
    begin();
    let size = svg.clientWidth;
    new ResizeObserver(() => {
      if (svg.clientWidth && svg.clientWidth !== size) {
        size = svg.clientWidth;
        begin();
      }
    }).observe(svg);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", begin);
  };

  for (const chart of document.querySelectorAll(".chart")) {
    const title = chart.parentNode.querySelector("figcaption").firstChild.textContent.trim();
    const keys = "arrow keys read values, plus and minus zoom, Escape shows all";
    chart.tabIndex = 0;
    chart.setAttribute("role", "group");
    chart.setAttribute("aria-label", `${title}: ${keys}`);
    let isAlive = false;
    const wake = () => {
      if (!isAlive) alive(chart);
      isAlive = true;
    };
    chart.addEventListener("pointerenter", wake);
    chart.addEventListener("focus", wake);
  }
  for (const one of document.querySelectorAll(".hint")) one.hidden = false;
})();

// What is wrong with the page that a browser has laid out: each finding is a line on its console, and the
// last line says what was looked at.
addEventListener("load", () => {
  const LEAST_CONTRAST = 4.5;
  // Of curves and outlines, which marks tell apart, too.
  const LEAST_CONTRAST_OF_LINES = 2;
  // Pixels of a letter's height.
  const LEAST_LETTERS = 9;
  // Pixels by which rounding may move an edge.
  const SLACK = 1;
  const found = (what, of) => console.error(`found: ${what}: ${named(of)}`);
  const named = (of) =>
    `<${of.localName} class="${of.getAttribute("class") ?? ""}"> ${of.textContent.trim().replace(/\s+/g, " ").slice(0, 60)}`;

  // [red, green, blue, opacity] of what getComputedStyle says.
  const colour = (text) => {
    const [r, g, b, a = 1] = (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, at) => value * a + below[at] * (1 - a));
  // As WCAG 2 defines it.
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [less, more] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);
  };
  // The ground on which an element stands.
  const ground = (element) => {
    if (!element) return isDark ? [0, 0, 0] : [255, 255, 255];
    const own = colour(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
  };
  // Of a text in a picture: the last area that is drawn before it and around its middle.
  const groundInPicture = (text, shapes) => {
    const box = text.getBoundingClientRect();
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    let below = ground(text.ownerSVGElement);
    for (const { shape, area, fill } of shapes) {
      if (shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_PRECEDING) break;
      if (area.left <= x && x <= area.right && area.top <= y && y <= area.bottom) below = over(fill, below);
    }
    return below;
  };

  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const isOfScheme = (rgb) => (isDark ? luminance(rgb) < 0.1 : luminance(rgb) > 0.7);
  const width = innerWidth;
  // What opens on demand is looked at, too.
  const closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((details) => (details.open = true));

  if (document.documentElement.scrollWidth > width) {
    found(`the page is ${document.documentElement.scrollWidth} pixels wide, the window ${width}`, document.documentElement);
  }
  if (!isOfScheme(ground(document.body))) found("the page has the ground of the other scheme", document.body);

  const scrolls = (element) =>
    element && (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  for (const element of document.body.querySelectorAll(":not(svg *)")) {
    const box = element.getBoundingClientRect();
    const isOutside = box.right > width + SLACK || box.left < -SLACK;
    if (isOutside && !scrolls(element.parentElement)) {
      found(`it goes from ${box.left} to ${box.right} in a window of ${width} pixels`, element);
    }
  }

  let texts = 0;
  const judge = (element, ink, below) => {
    texts += 1;
    const ratio = contrast(over(ink, below), below);
    if (ratio < LEAST_CONTRAST) found(`contrast of ${ratio.toFixed(2)}, rgb(${ink}) on rgb(${below})`, element);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("svg, script, style")) continue;
    judge(element, colour(getComputedStyle(element).color), ground(element));
  }

  const pictures = [...document.querySelectorAll("svg")];
  for (const figure of document.querySelectorAll("figure")) {
    if (!figure.querySelector("svg")) found("a figure without a picture", figure);
  }
  for (const picture of pictures) {
    const frame = picture.getBoundingClientRect();
    if (frame.width < 100 || frame.height < 30) found(`a picture of ${frame.width} x ${frame.height} pixels`, picture);
    if (!picture.querySelector("polyline, circle, path, polygon, rect:nth-of-type(2)")) found("a picture without a curve or a bar", picture);
    const areas = [...picture.querySelectorAll("rect, polygon, circle")];
    const shapes = areas.map((shape) => {
      const style = getComputedStyle(shape);
      const fill = style.fill === "none" ? [0, 0, 0, 0] : colour(style.fill);
      fill[3] *= style.fillOpacity * style.opacity;
      return { shape, fill, area: shape.getBoundingClientRect() };
    });
    const back = shapes[0];
    if (back && !isOfScheme(over(back.fill, ground(picture)))) found("the picture has the ground of the other scheme", picture);
    for (const line of picture.querySelectorAll("[stroke-width='2']")) {
      const below = over(back.fill, ground(picture));
      const ratio = contrast(over(colour(getComputedStyle(line).stroke), below), below);
      if (ratio < LEAST_CONTRAST_OF_LINES) found(`a line with a contrast of ${ratio.toFixed(2)}`, line);
    }
    const boxes = [];
    for (const text of picture.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (!text.textContent.trim()) continue;
      const isCut =
        box.left < frame.left - SLACK || box.right > frame.right + SLACK || box.top < frame.top - SLACK || box.bottom > frame.bottom + SLACK;
      if (isCut) found("a text that the picture's edge cuts", text);
      const isOver = ({ box: other }) =>
        Math.min(box.right, other.right) - Math.max(box.left, other.left) > 2 * SLACK &&
        Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > box.height / 4;
      const other = boxes.find(isOver);
      if (other) found(`a text over ${named(other.text)}`, text);
      boxes.push({ text, box });
      const style = getComputedStyle(text);
      const letters = (parseFloat(style.fontSize) * frame.width) / picture.viewBox.baseVal.width;
      if (letters < LEAST_LETTERS) found(`letters of ${letters.toFixed(1)} pixels`, text);
      const ink = colour(style.fill);
      ink[3] *= style.fillOpacity * style.opacity;
      judge(text, ink, groundInPicture(text, shapes));
    }
  }

  closed.forEach((details) => (details.open = false));
  console.info(`looked: ${JSON.stringify({ width, isDark, pictures: pictures.length, texts, height: document.documentElement.scrollHeight })}`);
});

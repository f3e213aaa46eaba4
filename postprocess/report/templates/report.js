'use strict';
// Sorting, filtering, CSV, and the details of a test case. The page shows all
// results without this script.
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const el = (name, text = '', more = {}) => {
  const element = Object.assign(document.createElement(name), more);
  element.textContent = text;
  return element;
};
const results = data.words;
const colour = (letter) => letter === '-' ? 'none' : letter;

// Tables ------------------------------------------------------------------
const cell = (td) => td.dataset.v ?? td.textContent.trim();
const order = (a, b) => {
  const [x, y] = [parseFloat(a.replace(/[\s\u202f]/g, '')),
                  parseFloat(b.replace(/[\s\u202f]/g, ''))];
  if (isNaN(x) || isNaN(y)) {
    return isNaN(x) - isNaN(y) || a.localeCompare(b, 'en', {numeric: true});
  }
  return x - y;
};
const csv = (rows) => rows.map((row) => row.map((text) => {
  const plain = String(text ?? '').replace(/\s+/g, ' ').trim();
  return /[",\n]/.test(plain) ? '"' + plain.replace(/"/g, '""') + '"' : plain;
}).join(',')).join('\n') + '\n';
const copy = (button, text) => {
  const label = button.textContent;
  const done = (message) => {
    button.textContent = message;
    setTimeout(() => { button.textContent = label; }, 1500);
  };
  // A page that is opened as a file must not use navigator.clipboard.
  const old = () => {
    const area = el('textarea', text);
    (button.closest('dialog') ?? document.body).append(area);
    area.select();
    const good = document.execCommand('copy');
    area.remove();
    done(good ? 'copied' : 'refused by the browser');
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(text).then(() => done('copied'), old);
  } else { old(); }
};
const copyButton = (text, label = 'copy') => {
  const button = el('button', label, {className: 'copy'});
  button.onclick = () => copy(button, text);
  return button;
};
for (const command of document.querySelectorAll('.command')) {
  command.after(' ', copyButton(command.textContent));
}
const sorters = (heads, sort) => heads.forEach((th, n) => {
  const button = el('button', th.textContent.trim());
  th.replaceChildren(button);
  button.onclick = () => {
    const up = th.getAttribute('aria-sort') !== 'ascending';
    heads.forEach((head) => head.removeAttribute('aria-sort'));
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    sort(n, up);
  };
});
const tools = (before, filter, rows) => {
  const bar = el('div', '', {className: 'tools'});
  const input = el('input', '', {type: 'search',
    placeholder: 'filter: words in a row', ariaLabel: 'filter'});
  const count = el('span', '', {className: 'soft'});
  input.oninput = () => filter(input.value.toLowerCase().split(/\s+/));
  bar.append(input, count);
  if (rows) {
    const button = el('button', 'copy as CSV');
    button.onclick = () => copy(button, csv(rows()));
    input.after(button);
  }
  before.before(bar);
  return count;
};
for (const table of document.querySelectorAll('table.sortable')) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const titles = heads.map((th) => th.textContent.trim());
  sorters(heads, (n, up) => {
    const rows = [...body.rows].map((row) => [cell(row.cells[n]), row]);
    rows.sort((a, b) => up ? order(a[0], b[0]) : order(b[0], a[0]));
    body.append(...rows.map((pair) => pair[1]));
  });
  if (body.rows.length > 5) {
    tools(table.closest('.scroll'), (parts) => {
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !parts.every((part) => text.includes(part));
      }
    }, () => [titles, ...[...body.rows].filter((row) => !row.hidden).map(
      (row) => [...row.cells].map(cell))]);
  }
}

// All values --------------------------------------------------------------
const human = (size) => {
  if (size === null) { return ''; }
  let unit = 0;
  while (size >= 1024 && unit < 3) { size /= 1024; unit += 1; }
  return `${+size.toPrecision(4)} ${['B', 'KiB', 'MiB', 'GiB'][unit]}`;
};
const pointRows = (series) => series.flatMap(([kind, metric, points]) =>
  points.map((point) => [kind, metric, ...point]));
const numbers = () => {
  const {kinds, metrics, rows, left} = data.numbers;
  const titles = ['family', 'test case', 'place', 'metric', 'size', 'unit', 'newest',
    'median', 'min', 'max', 'sessions', 'reference'];
  let all = pointRows(rows).map((row) => {
    const [family, name, place] = kinds[row[0]];
    const [metric, unit] = metrics[row[1]];
    return [family, name, place, metric, row[2], unit, ...row.slice(3)];
  });
  let shown = all, limit = 60;
  const box = document.getElementById('table');
  const scroll = el('div', '', {className: 'scroll'});
  const table = el('table');
  const head = table.createTHead().insertRow();
  titles.forEach((title, n) => head.append(
    el('th', title, {className: n > 5 || n === 4 ? 'n' : ''})));
  const body = table.createTBody();
  const more = el('button', '');
  const draw = () => {
    body.replaceChildren(...shown.slice(0, limit).map((row) => {
      const tr = document.createElement('tr');
      row.forEach((value, n) => tr.append(el('td', n === 4 ? human(value)
        : value ?? '', {className: n > 5 || n === 4 ? 'n' : ''})));
      return tr;
    }));
    count.textContent = `${shown.length} rows`
      + (left ? `; the perflogs have ${left} more` : '');
    more.textContent = `show all ${shown.length}`;
    more.hidden = shown.length <= limit;
  };
  more.onclick = () => { limit = Infinity; draw(); };
  scroll.append(table);
  box.replaceChildren(scroll);
  const count = tools(scroll, (parts) => {
    shown = all.filter((row) => {
      const text = row.join(' ').toLowerCase() + ' ' + human(row[4]);
      return parts.every((part) => text.toLowerCase().includes(part));
    });
    draw();
  }, () => [titles.map((title) => title === 'size' ? 'size (B)' : title),
    ...shown]);
  count.after(more);
  sorters([...head.cells], (n, up) => {
    const by = (a, b) => typeof a[n] === 'number' && typeof b[n] === 'number'
      ? a[n] - b[n] : order(String(a[n] ?? ''), String(b[n] ?? ''));
    shown.sort((a, b) => up ? by(a, b) : by(b, a));
    draw();
  });
  draw();
};
// The table is far below, and it is filled when it comes near the screen.
const whenNear = (places, then) => {
  if (!('IntersectionObserver' in window)) { places.forEach(then); return; }
  const watch = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) {
      if (isIntersecting) { watch.unobserve(target); then(target); }
    }
  }, {rootMargin: '600px'});
  places.forEach((place) => watch.observe(place));
};
whenNear([document.getElementById('numbers')], numbers);

// The grid ----------------------------------------------------------------
const grid = document.querySelector('.grid');
const folds = [...grid.querySelectorAll('details')];
const open = folds.map((fold) => fold.open);
const found = tools(grid, (parts) => {
  const words = parts.filter((part) => part);
  let count = 0;
  for (const row of grid.querySelectorAll('a.row')) {
    const text = row.getAttribute('aria-label').toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  folds.forEach((fold, n) => {
    fold.hidden = words.length && !fold.querySelector('a.row:not([hidden])');
    fold.open = words.length ? true : open[n];
  });
  found.textContent = words.length ? `${count} of ${data.cases.length} test cases` : '';
});
// On paper nothing is folded.
let before = [];
window.addEventListener('beforeprint', () => {
  before = folds.filter((fold) => !fold.open);
  before.forEach((fold) => { fold.open = true; });
});
window.addEventListener('afterprint', () => {
  before.forEach((fold) => { fold.open = false; });
});
const place = (box, event) => {
  const {left, width} = box.querySelector('svg').getBoundingClientRect();
  return Math.floor((event.clientX - left) / width * data.sessions.length);
};
for (const row of grid.querySelectorAll('a.row')) {
  row.onmousemove = (event) => {
    const box = event.target.closest('.cells');
    const testCase = data.cases[+row.dataset.case];
    const session = box && place(box, event);
    row.title = box && testCase.c[session]
      ? `${testCase.n}: ${results[testCase.c[session]]}, ${data.sessions[session]} UTC`
      : `${testCase.n}, ${testCase.p}`;
  };
}

// A test case -------------------------------------------------------------
const dialog = document.getElementById('case');
const sessions = data.sessions;
const numberOf = new Map(data.cases.map((testCase, n) => ['#' + testCase.u, n]));
const at = (past, session) => {
  let latest = null;
  for (const [from, value] of past) { if (from <= session) { latest = value; } }
  return latest;
};
const newest = (cells) => {
  for (let n = cells.length - 1; n >= 0; n -= 1) {
    if (cells[n] !== '.') { return n; }
  }
  return 0;
};
const digits = (value) => value === null || value === undefined ? ''
  : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString('en').replace(/,/g, '\u202f')
    : String(+value.toPrecision(4));
const shape = (name, attributes) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  return element;
};
// A line through the values of sessions, with what they are compared with. Inconclusive
// values are rings, which the line leaves out. Sessions on a node that is worse are marked. The newest `most` values are drawn.
const draw = (line, {most = Infinity, nodes = [], session = null} = {}) => {
  const [base, reference, low, high] = line.l;
  const from = Math.max(0, line.x.length - most);
  const xs = line.x.slice(from), ys = line.y.slice(from);
  const isHollow = (i) => Boolean(line.i?.includes(from + i));
  const levels = [['base', base], ['level', reference]].filter(([, value]) => value !== null);
  const shown = [...ys, ...levels.map(([, value]) => value)];
  let bottom = Math.min(...shown), top = Math.max(...shown);
  // A tolerance far away does not flatten the line: its band ends at the edge.
  const span = top - bottom;
  for (const end of [low, high]) {
    if (end !== null && end >= bottom - span && end <= top + span) {
      bottom = Math.min(bottom, end);
      top = Math.max(top, end);
    }
  }
  const [first, last] = most === Infinity ? [0, sessions.length - 1] : [xs[0], xs.at(-1)];
  const x = (n) => 4 + 592 * (last > first ? (n - first) / (last - first) : .5);
  const y = (value) => top > bottom ? Math.min(100, Math.max(
    0, 96 - 90 * (value - bottom) / (top - bottom))) : 50;
  const svg = shape('svg', {viewBox: '0 0 600 100', preserveAspectRatio: 'none',
    class: 'spark', role: 'img', 'aria-label': line.t
      ?? `${ys.length} sessions, ${digits(Math.min(...ys))} to ${digits(Math.max(...ys))}`});
  const path = (name, d) => svg.append(shape('path', {class: name, d}));
  if (low !== null || high !== null) {
    path('band', `M0 ${high === null ? 0 : y(high)}H600V${low === null ? 100 : y(low)}H0z`);
  }
  for (const [name, value] of levels) { path(name, `M0 ${y(value)}H600`); }
  for (const turn of line.k.filter((n) => n > first && n <= last)) {
    path('since', `M${x(turn - .5)} 0V100`);
  }
  if (session !== null) { path('now', `M${x(session)} 0V100`); }
  svg.append(shape('polyline', {points: xs.flatMap((n, i) => isHollow(i) ? []
    : `${x(n).toFixed(1)},${y(ys[i]).toFixed(1)}`).join(' ')}));
  const dots = (name, isShown) => xs.forEach((n, i) => isShown(n, i)
    && path(name, `M${x(n)} ${y(ys[i])}h0`));
  if (session !== null && xs.length < 30) { dots('dot', (n, i) => !isHollow(i)); }
  // The paper covers the middle of each mark.
  for (const name of ['hollow', 'hollow inside']) { dots(name, (n, i) => isHollow(i)); }
  for (const {sessions: there} of nodes) { dots('dot there', (n) => there.includes(n)); }
  return [svg, bottom, top];
};
// Small plots of values are many, and each is drawn when it comes near the screen.
const small = document.querySelectorAll('[data-curve]');
const fill = (place) => {
  if (place.firstChild) { return; }
  const [number, curve] = (place.dataset.curve ?? '').split(' ').map(Number);
  place.append(draw(place.dataset.event ? data.events[place.dataset.event]
    : data.cases[number].v[curve], {most: 90})[0]);
};
document.querySelectorAll('[data-event]').forEach(fill);
whenNear(small, fill);
window.addEventListener('beforeprint', () => small.forEach(fill));
// A curve over all sessions, with its numbers.
const curve = (line, session, nodes) => {
  const [base, reference, low, high] = line.l;
  const [svg, bottom, top] = draw(line, {nodes, session});
  const median = (values) => values.length
    ? digits(values.sort((a, b) => a - b)[values.length >> 1]) : 'no value';
  const text = [...nodes.map(({node, since, sessions: there}) => {
    const values = (isThere) => line.y.filter((value, i) => line.x[i] >= since
      && there.includes(line.x[i]) === isThere);
    return `since ${sessions[since].slice(0, 10)} on ${node} (dots) ${median(values(true))}, `
      + `on other nodes ${median(values(false))}`;
  }), `newest ${digits(line.y.at(-1))}`
    + (line.i?.includes(line.y.length - 1) ? ' (inconclusive)' : ''),
  line.i?.length && `rings: ${line.i.length} inconclusive`, base !== null && `baseline ${digits(base)}`,
    reference !== null && `reference ${digits(reference)}`,
    low !== null && `at least ${digits(low)}`, high !== null && `at most ${digits(high)}`,
    line.k.length && `change points ${line.k.map((n) => sessions[n].slice(0, 10)).join(', ')}`,
    line.o > line.y.length && `the newest ${line.y.length} of ${line.o} sessions`];
  svg.setAttribute('aria-label', text.filter(Boolean).join(', '));
  const plot = el('div', '', {className: 'curve'});
  const ends = el('div', '', {className: 'ends'});
  ends.append(...[0, sessions.length - 1].map((n) => el('span', sessions[n].slice(0, 10))));
  plot.append(el('b', `${line.m}${line.p && ` at ${line.p}`}${line.u && ` (${line.u})`}`
    + `, from ${digits(bottom)} to ${digits(top)}`),
  svg, ends, el('p', text.filter(Boolean).join(' · ')));
  return plot;
};
const allMetrics = (number) => {
  const {kinds, metrics, rows} = data.numbers;
  const table = el('table');
  const head = table.createTHead().insertRow();
  for (const title of ['metric', 'size', 'unit', 'newest', 'median', 'min', 'max',
    'sessions', 'reference']) { head.append(el('th', title)); }
  const body = table.createTBody();
  for (const row of pointRows(rows.filter((one) => kinds[one[0]][3] === number))) {
    const [metric, unit] = metrics[row[1]];
    body.insertRow().append(...[metric, human(row[2]), unit,
      ...row.slice(3, 7).map(digits), row[7], digits(row[8])].map((text) => el('td', text)));
  }
  const details = el('details');
  const scroll = el('div', '', {className: 'scroll', tabIndex: 0});
  scroll.append(table);
  details.append(el('summary', `all ${body.rows.length} values of all metrics`), scroll);
  return details;
};
let now = null;
const show = (number, session) => {
  const testCase = data.cases[number];
  if (!testCase) { return; }
  session = Math.max(0, Math.min(sessions.length - 1,
    Number(session ?? newest(testCase.c))));
  const opened = now?.number === number && dialog.querySelector('details')?.open;
  now = {number, session};
  const letter = testCase.c[session];
  const title = el('h2', testCase.n, {id: 'case-title'});
  const mark = el('span', results[letter], {className: `mark m-${colour(letter)}`});
  const move = el('div', '', {className: 'move'});
  const [back, next, close] = ['← earlier', 'later →', 'close']
    .map((text) => el('button', text));
  back.onclick = () => show(number, session - 1);
  next.onclick = () => show(number, session + 1);
  close.onclick = () => dialog.close();
  back.disabled = !session;
  next.disabled = session === sessions.length - 1;
  move.append(back, next, mark, el('b', `${sessions[session]} UTC`),
    copyButton(location.href.replace(/#.*/, '') + '#' + testCase.u, 'copy address'), close);
  const name = el('p', '', {className: 'soft'});
  name.append(`${testCase.p} · in ReFrame `, el('code', testCase.m));
  const table = el('table');
  const add = (name, text, was) => {
    if (!text && !was) { return; }
    const row = table.insertRow();
    row.append(el('th', name), el('td', text || '-'));
    if (was !== undefined) {
      row.append(el('td', `changed; before: ${was || '-'}`,
        {className: 'xfail'}));
    }
  };
  if (session === newest(testCase.c)) {
    add('reason', testCase.r);
    add('guard', testCase.g);
    add('not checked', testCase.k);
    add('record', testCase.f);
    add('log', testCase.d.log);
    add('stage folder', testCase.d.stage);
    add('output folder', testCase.d.output);
    add('smallest change that is found', testCase.w);
  }
  for (const {node, sessions: there} of testCase.e) {
    add('regression', `worse on ${node}, on which it ran last in the session of ${
      sessions[there.at(-1)]} UTC${there.at(-1) < newest(testCase.c)
      ? `; not measured on ${node} since` : ''}`);
  }
  add('job', testCase.j.at(session - sessions.length));
  for (const [name, title] of Object.entries(data.fields)) {
    const past = testCase.h[name] ?? [];
    const turn = past.findIndex(([from]) => from === session);
    add(title, at(past, session), turn > 0 ? past[turn - 1][1] : undefined);
  }
  const changes = Object.entries(testCase.h).flatMap(([name, past]) => past.slice(1).map(
    ([from, value], n) => [from, `${sessions[from]}: ${data.fields[name]} ${
      past[n][1] || '-'} → ${value || '-'}`])).sort((a, b) => b[0] - a[0]);
  const list = el('ul');
  list.append(...changes.slice(0, 40).map(([, text]) => el('li', text)));
  const past = [...testCase.c].filter((c) => c !== '.');
  const bad = past.filter((c) => data.bad.includes(c)).length;
  const again = el('p', testCase.a ? 'to run it again: ' : 'no program measured it');
  if (testCase.a) {
    again.append(el('code', testCase.a, {className: 'command'}), ' ',
      copyButton(testCase.a));
  }
  const values = allMetrics(number);
  values.open = Boolean(opened);
  dialog.replaceChildren(title, name, move, cells(testCase, session),
    el('p', `It failed, regressed or has no record in ${bad} of ${past.length} sessions.`,
      {className: 'soft'}), ...testCase.v.map((line) => curve(line, session, testCase.e)),
    values, table, ...(changes.length ? [el('h3', `Changes of the environment: ${
      changes.length}`), list] : []), again);
  if (!dialog.open) { dialog.showModal(); }
  if (location.hash !== '#' + testCase.u) {
    history.replaceState(null, '', '#' + testCase.u);
  }
};
const cells = (testCase, session) => {
  const row = document.querySelector(`.row[data-case="${data.cases.indexOf(testCase)}"] .cells`);
  const copy = row.cloneNode(true);
  const here = el('span', '', {className: 'here'});
  here.style.cssText = `left:${100 * session / sessions.length}%;`
    + `width:max(6px,${100 / sessions.length}%)`;
  copy.append(here);
  copy.onclick = (event) => show(now.number, place(copy, event));
  return copy;
};
document.addEventListener('click', (event) => {
  const link = event.target.closest('a.case');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) { return; }
  event.preventDefault();
  const box = event.target.closest('.cells');
  show(numberOf.get(decodeURIComponent(link.hash)),
    box && event.clientX ? place(box, event) : link.dataset.session ?? null);
});
dialog.addEventListener('keydown', (event) => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (step) { show(now.number, now.session + step); event.preventDefault(); }
});
dialog.addEventListener('click', (event) => {
  if (event.target === dialog) { dialog.close(); }
});
dialog.addEventListener('close', () => {
  history.replaceState(null, '', location.href.replace(/#.*/, ''));
});
const follow = () => {
  const address = decodeURIComponent(location.hash);
  show(numberOf.get(address));
  // A link to the plots of a family opens them.
  const target = document.getElementById(address.slice(1));
  for (const gallery of target?.querySelectorAll('.gallery') ?? []) gallery.open = true;
};
window.addEventListener('hashchange', follow);
follow();
})();

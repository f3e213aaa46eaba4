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
const results = {f: 'failed', n: 'not run', k: 'flaky', X: 'known fault fixed', x: 'known fault',
  p: 'passed', w: 'regressed', i: 'inconclusive', r: 'no reference', '-': 'no record', '.': 'not planned'};
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
  const done = (message) => {
    button.textContent = message;
    setTimeout(() => { button.textContent = 'copy as CSV'; }, 1500);
  };
  // A page that is opened as a file must not use navigator.clipboard.
  const old = () => {
    const area = el('textarea', text);
    document.body.append(area);
    area.select();
    const good = document.execCommand('copy');
    area.remove();
    done(good ? 'copied' : 'refused by the browser');
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(text).then(() => done('copied'), old);
  } else { old(); }
};
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
  const button = el('button', 'copy as CSV');
  const count = el('span', '', {className: 'soft'});
  input.oninput = () => filter(input.value.toLowerCase().split(/\s+/));
  button.onclick = () => copy(button, csv(rows()));
  bar.append(input, button, count);
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
const numbers = () => {
  const {kinds, metrics, rows, left} = data.numbers;
  const titles = ['family', 'test case', 'place', 'speed class', 'metric', 'size',
    'unit', 'newest', 'median', 'min', 'max', 'sessions', 'reference'];
  let all = rows.map((row) => {
    const [family, name, place] = kinds[row[0]];
    const [metric, unit] = metrics[row[2]];
    return [family, name, place, row[1], metric, row[3], unit,
      ...row.slice(4)];
  });
  let shown = all, limit = 60;
  const box = document.getElementById('table');
  const scroll = el('div', '', {className: 'scroll'});
  const table = el('table');
  const head = table.createTHead().insertRow();
  titles.forEach((title, n) => head.append(
    el('th', title, {className: n > 6 || n === 5 ? 'n' : ''})));
  const body = table.createTBody();
  const more = el('button', '');
  const draw = () => {
    body.replaceChildren(...shown.slice(0, limit).map((row) => {
      const tr = document.createElement('tr');
      row.forEach((value, n) => tr.append(el('td', n === 5 ? human(value)
        : value ?? '', {className: n > 6 || n === 5 ? 'n' : ''})));
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
      const text = row.join(' ').toLowerCase() + ' ' + human(row[5]);
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
const later = document.getElementById('numbers');
if ('IntersectionObserver' in window) {
  const watch = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      watch.disconnect();
      numbers();
    }
  }, {rootMargin: '600px'});
  watch.observe(later);
} else { numbers(); }

// A test case -------------------------------------------------------------
const dialog = document.getElementById('case');
const sessions = data.sessions;
const at = (past, session) => {
  let latest = null;
  for (const [from, value] of past) { if (from <= session) { latest = value; } }
  return latest;
};
const newest = (cells) => {
  const all = [...cells];
  for (let n = all.length - 1; n >= 0; n -= 1) {
    if (all[n] !== '.') { return n; }
  }
  return 0;
};
let now = null;
const show = (number, session) => {
  const testCase = data.cases[number];
  if (!testCase) { return; }
  session = Math.max(0, Math.min(sessions.length - 1,
    session ?? newest(testCase.c)));
  now = {number, session};
  const letter = testCase.c[session];
  const title = el('h2', testCase.n);
  const mark = el('span', results[letter], {className: `mark m-${colour(letter)}`});
  const move = el('div', '', {className: 'move'});
  const [back, next, close] = ['← earlier', 'later →', 'close']
    .map((text) => el('button', text));
  back.onclick = () => show(number, session - 1);
  next.onclick = () => show(number, session + 1);
  close.onclick = () => dialog.close();
  back.disabled = !session;
  next.disabled = session === sessions.length - 1;
  move.append(back, next, mark, el('b', `${sessions[session]} UTC`), close);
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
    add('record', testCase.f);
    add('smallest change that is found', testCase.w);
  }
  add('job', testCase.j[session]);
  for (const [name, title] of Object.entries(data.fields)) {
    const past = testCase.h[name] ?? [];
    const turn = past.findIndex(([from]) => from === session);
    add(title, at(past, session), turn > 0 ? past[turn - 1][1] : undefined);
  }
  add('check', testCase.k);
  add('parameters', testCase.a);
  add('hash of the test case', testCase.i);
  const past = [...testCase.c].map((c, n) => [c, n]).filter(([c]) => c !== '.');
  const bad = past.filter(([c]) => 'fnk-Xw'.includes(c)).length;
  dialog.replaceChildren(title, el('p', testCase.p, {className: 'soft'}), move,
    cells(testCase, session), el('p', `It failed, regressed or has no record in ${bad} `
      + `of ${past.length} sessions.`, {className: 'soft'}), table);
  if (!dialog.open) { dialog.showModal(); }
};
const cells = (testCase, session) => {
  const row = document.querySelector(`.row[data-case="${data.cases.indexOf(testCase)}"] .cells`);
  const copy = row.cloneNode(true);
  copy.style.setProperty('--n', sessions.length);
  const here = el('span');
  here.style.cssText = 'position:absolute;top:0;bottom:0;z-index:1;'
    + `border:2px solid var(--c0);left:${100 * session / sessions.length}%;`
    + `width:max(6px,${100 / sessions.length}%)`;
  copy.append(here);
  copy.onclick = (event) => show(now.number, place(copy, event));
  return copy;
};
const place = (box, event) => {
  const {left, width} = box.getBoundingClientRect();
  return Math.floor((event.clientX - left) / width * sessions.length);
};
document.addEventListener('click', (event) => {
  const link = event.target.closest('a.case');
  if (!link) { return; }
  event.preventDefault();
  const box = event.target.closest('.cells');
  show(+link.hash.slice(6), box && event.clientX ? place(box, event) : null);
});
dialog.addEventListener('keydown', (event) => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (step) { show(now.number, now.session + step); event.preventDefault(); }
});
dialog.addEventListener('click', (event) => {
  if (event.target === dialog) { dialog.close(); }
});
for (const row of document.querySelectorAll('.row')) {
  row.onmousemove = (event) => {
    const box = event.target.closest('.cells');
    const testCase = data.cases[+row.dataset.case];
    const session = box && place(box, event);
    row.title = box && testCase.c[session]
      ? `${testCase.n}: ${results[testCase.c[session]]}, ${sessions[session]} UTC`
      : `${testCase.n}, ${testCase.p}`;
  };
}
})();

'use strict';
// Sorting, filtering, CSV, and the look-up of a case. The page says all that
// matters without it.
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const el = (name, text = '', more = {}) => {
  const made = Object.assign(document.createElement(name), more);
  made.textContent = text;
  return made;
};
const words = {f: 'failed', n: 'not run', k: 'flaky', X: 'known fault gone', x: 'known fault',
  p: 'passed', w: 'worse than it was', i: 'inconclusive', r: 'no reference', '-': 'no record', '.': 'not planned'};
const look = (letter) => letter === '-' ? 'none' : letter;

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
  const one = String(text ?? '').replace(/\s+/g, ' ').trim();
  return /[",\n]/.test(one) ? '"' + one.replace(/"/g, '""') + '"' : one;
}).join(',')).join('\n') + '\n';
const copy = (button, text) => {
  const done = (word) => {
    button.textContent = word;
    setTimeout(() => { button.textContent = 'copy as CSV'; }, 1500);
  };
  // A page opened as a file may not write to the clipboard by itself.
  const old = () => {
    const area = el('textarea', text);
    document.body.append(area);
    area.select();
    const good = document.execCommand('copy');
    area.remove();
    done(good ? 'copied' : 'not allowed here');
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
    heads.forEach((one) => one.removeAttribute('aria-sort'));
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    sort(n, up);
  };
});
const tools = (before, filter, rows) => {
  const bar = el('div', '', {className: 'tools'});
  const input = el('input', '', {type: 'search',
    placeholder: 'filter: words that a row must have', ariaLabel: 'filter'});
  const button = el('button', 'copy as CSV');
  const said = el('span', '', {className: 'soft'});
  input.oninput = () => filter(input.value.toLowerCase().split(/\s+/));
  button.onclick = () => copy(button, csv(rows()));
  bar.append(input, button, said);
  before.before(bar);
  return said;
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

// Numbers -----------------------------------------------------------------
const human = (size) => {
  if (size === null) { return ''; }
  let unit = 0;
  while (size >= 1024 && unit < 3) { size /= 1024; unit += 1; }
  return `${+size.toPrecision(4)} ${['B', 'KiB', 'MiB', 'GiB'][unit]}`;
};
const numbers = () => {
  const {kinds, metrics, rows, left} = data.numbers;
  const titles = ['family', 'case', 'where', 'speed', 'metric', 'size',
    'unit', 'newest', 'median', 'min', 'max', 'runs', 'reference'];
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
    said.textContent = `${shown.length} rows`
      + (left ? `; ${left} more are in the perflogs only` : '');
    more.textContent = `show all ${shown.length}`;
    more.hidden = shown.length <= limit;
  };
  more.onclick = () => { limit = Infinity; draw(); };
  scroll.append(table);
  box.replaceChildren(scroll);
  const said = tools(scroll, (parts) => {
    shown = all.filter((row) => {
      const text = row.join(' ').toLowerCase() + ' ' + human(row[5]);
      return parts.every((part) => text.toLowerCase().includes(part));
    });
    draw();
  }, () => [titles.map((title) => title === 'size' ? 'size (B)' : title),
    ...shown]);
  said.after(more);
  sorters([...head.cells], (n, up) => {
    const by = (a, b) => typeof a[n] === 'number' && typeof b[n] === 'number'
      ? a[n] - b[n] : order(String(a[n] ?? ''), String(b[n] ?? ''));
    shown.sort((a, b) => up ? by(a, b) : by(b, a));
    draw();
  });
  draw();
};
// Nobody waits for what is far below.
const later = document.getElementById('numbers');
if ('IntersectionObserver' in window) {
  const watch = new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) {
      watch.disconnect();
      numbers();
    }
  }, {rootMargin: '600px'});
  watch.observe(later);
} else { numbers(); }

// A case ------------------------------------------------------------------
const dialog = document.getElementById('case');
const sessions = data.sessions;
const at = (past, session) => {
  let found = null;
  for (const [from, value] of past) { if (from <= session) { found = value; } }
  return found;
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
  const one = data.cases[number];
  if (!one) { return; }
  session = Math.max(0, Math.min(sessions.length - 1,
    session ?? newest(one.c)));
  now = {number, session};
  const letter = one.c[session];
  const title = el('h2', one.n);
  const mark = el('span', words[letter], {className: `mark m-${look(letter)}`});
  const move = el('div', '', {className: 'move'});
  const [back, next, close] = ['← session before', 'session after →', 'close']
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
      row.append(el('td', `changed: ${was || '-'} before`,
        {className: 'xfail'}));
    }
  };
  if (session === newest(one.c)) {
    add('why', one.r);
    add('guard', one.g);
    add('record', one.f);
  }
  add('job', one.j[session]);
  for (const [name, title] of Object.entries(data.fields)) {
    const past = one.h[name] ?? [];
    const turn = past.findIndex(([from]) => from === session);
    add(title, at(past, session), turn > 0 ? past[turn - 1][1] : undefined);
  }
  add('check', one.k);
  add('parameters', one.a);
  add('hash of the case', one.i);
  const past = [...one.c].map((c, n) => [c, n]).filter(([c]) => c !== '.');
  const bad = past.filter(([c]) => 'fnk-Xw'.includes(c)).length;
  dialog.replaceChildren(title, el('p', one.p, {className: 'soft'}), move,
    cells(one, session), el('p', `${bad} of ${past.length} sessions failed, are worse `
      + 'than it was, or have no record.', {className: 'soft'}), table);
  if (!dialog.open) { dialog.showModal(); }
};
const cells = (one, session) => {
  const row = document.querySelector(`.row[data-case="${data.cases.indexOf(one)}"] .cells`);
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
    const one = data.cases[+row.dataset.case];
    const session = box && place(box, event);
    row.title = box && one.c[session]
      ? `${one.n}: ${words[one.c[session]]}, ${sessions[session]} UTC`
      : `${one.n}, ${one.p}`;
  };
}
})();

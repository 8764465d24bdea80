'use strict';
// One prompt with its completions; two of them beside each other, with what changed.

const TAG = /(<\/?(?:think|answer)>)/;
const FOLD = { from: 1200, head: 500, tail: 400 };  // characters of a long completion
const SHOWN = 8;  // completions of a prompt, until the others are asked for

// Text with the searched words marked. Text nodes only, because completions may contain HTML.
function marked(text, words) {
  if (!words) return [text];
  const low = text.toLowerCase(), wanted = words.toLowerCase(), pieces = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    pieces.push(text.slice(from, at), h('mark', {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...pieces, text.slice(from)];
}

// Marks the thought and the answer of a completion.
function tagged(text, words) {
  let kind = text.includes('</think>') && !text.includes('<think>') ? 'thought' : 'plain';
  return text.split(TAG).filter(Boolean).map((piece) => {
    if (piece === '<think>') kind = 'thought';
    if (piece === '<answer>') kind = 'answer';
    const shown = TAG.test(piece) ? h('span', { class: `tag ${kind}` }, piece) : h('span', { class: kind }, ...marked(piece, words));
    if (piece === '</think>' || piece === '</answer>') kind = 'plain';
    return shown;
  });
}

// A long text is cut in its middle until it is asked for; what the search found is never hidden.
function completionText(text, words) {
  const hidden = text.slice(FOLD.head, text.length - FOLD.tail);
  if (text.length <= FOLD.from || (words && hidden.toLowerCase().includes(words.toLowerCase()))) return tagged(text, words);
  const holder = h('span', { class: 'folded' });
  const more = h('button', { class: 'more', onclick: () => holder.replaceChildren(...tagged(text, words)) }, `… ${hidden.length.toLocaleString('en')} more characters …`);
  holder.append(...tagged(text.slice(0, FOLD.head), words), more, ...tagged(text.slice(-FOLD.tail), words));
  return [holder];
}

// The most nats that a piece of a group's completions loses with another picture; null if that was not measured.
function mostLost(group) {
  const pieces = group.completions.flatMap((completion) => completion.vision_use || []);
  return pieces.length ? pieces.reduce((most, [, nats]) => Math.max(most, nats), 0.1) : null;
}

// The text in pieces, each coloured by how much its tokens need the picture of their prompt.
function lookedText(pieces, strongest) {
  const shown = (part) => part.map(([text, nats]) => h('span', {
    class: nats > 0 ? 'looks' : null, style: `--share: ${Math.round((100 * Math.max(0, nats)) / strongest)}%`, title: `${nats > 0 ? '−' : '+'}${short(Math.abs(nats))} nats with another picture`,
  }, text));
  let length = 0;
  const ends = pieces.map(([text]) => (length += text.length));
  if (length <= FOLD.from) return shown(pieces);
  const head = ends.findIndex((end) => end > FOLD.head), tail = ends.findIndex((end) => end > length - FOLD.tail);
  const holder = h('span', { class: 'folded' });
  const more = h('button', { class: 'more', onclick: () => holder.replaceChildren(...shown(pieces)) }, `… ${(ends[tail - 1] - ends[head - 1]).toLocaleString('en')} more characters …`);
  holder.append(...shown(pieces.slice(0, head)), more, ...shown(pieces.slice(tail)));
  return [holder];
}

// The turns of a conversation: who spoke, what was said, and a tool's pictures where they came.
function conversation(turns, source, words) {
  return turns.map((turn) => h('div', { class: `turn ${turn.role}` }, h('b', {}, `${turn.role} `), turnContent(turn, source, words)));
}

function turnContent(turn, source, words) {
  const parts = Array.isArray(turn.answers) ? turn.answers.flat() : [];
  const pictures = parts.filter((part) => part && 'medium' in part);
  if (!pictures.length) return [...completionText(turn.text, words), media(turn, source)];
  return parts.map((part) => ('medium' in part ? media({ media: [turn.media[part.medium]].filter(Boolean) }, source) : h('span', {}, ...completionText(String(part.text), words))));
}

function promptText(prompt) {
  return prompt.replace(/<\|im_start\|>assistant\s*$/, '').replace(/<\|im_(?:start|end)\|>/g, '').replace(/<\|vision_start\|>.*?<\|vision_end\|>/g, '▣ ').trim();
}

function describe(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

// `3 answers: 7 ×5, 8 ×2, none`: the different answers of a group, the most frequent first.
function answersOf(group) {
  const counts = new Map();
  for (const { given } of group.completions) counts.set(given, (counts.get(given) || 0) + 1);
  const short = (text) => (text == null ? 'none' : text.length > 24 ? `${text.slice(0, 24)}…` : text);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, 4).map(([text, count]) => short(text) + (count > 1 ? ` ×${count}` : '')).join(', ');
  return `${sorted.length} answer${sorted.length === 1 ? '' : 's'}: ${shown}${sorted.length > 4 ? ', …' : ''}`;
}

// What changed between two groups of the same prompt.
function change([a, b]) {
  const of = (group, key) => group.completions.map((c) => c[key]).filter((value) => value != null);
  const names = [...new Set([a, b].flatMap((group) => group.completions.flatMap((c) => Object.keys(c.components))))];
  const part = (group, name) => group.completions.map((c) => c.components[name]).filter((value) => value != null);
  const arrow = (name, from, to) => (from.length && to.length ? `${name} ${short(meanOf(from))} → ${short(meanOf(to))}` : null);
  return [arrow('reward', of(a, 'reward'), of(b, 'reward')), ...names.map((name) => arrow(name, part(a, name), part(b, name))),
    arrow('tokens', of(a, 'tokens'), of(b, 'tokens')), `${answersOf(a)} → ${answersOf(b)}`].filter(Boolean).join(' · ');
}

// What the browser gives a card: the state, the filters, and go(), which changes filters.
function card({ group, indices }, { state, filters, go, stepsOf }) {
  const strongest = mostLost(group);
  const rows = indices.map((index) => completionRow(group.completions[index], index, state.source, filters.words, strongest));
  const completions = ['completion', strongest && !filters.words ? h('span', { class: 'hint' }, `, coloured by what another picture costs: up to ${short(strongest)} nats`) : null];
  const others = stepsOf(group).filter((step) => step !== group.step);
  const beside = h('select', { 'aria-label': 'beside step', onchange: () => go({ id: group.id, step: String(group.step), beside: beside.value, order: 'step' }) },
    h('option', { value: '' }, 'beside step …'), others.map((step) => h('option', { value: step, selected: String(step) === filters.beside && String(group.step) === filters.step }, step)));
  const own = addressOf({ ...NO_FILTERS, id: group.id, step: String(group.step) });
  const body = h('tbody', {}, rows.slice(0, SHOWN)), rest = rows.slice(SHOWN);
  if (rest.length) body.append(h('tr', {}, h('td', { colspan: 5 }, h('button', { class: 'more', onclick: (event) => event.target.closest('tr').replaceWith(...rest) }, `${rest.length} more completion${rest.length === 1 ? '' : 's'}`))));
  const article = h('article', { tabindex: '-1' },
    h('header', {}, h('b', {}, ...marked(group.id, filters.words)), h('span', {}, ` step ${group.step}`, state.summary.runs.length > 1 ? ` · ${state.summary.runs[group.run].name}` : '',
      group.task ? ` · ${group.task}` : '', indices.length < group.completions.length ? ` · ${indices.length} of ${group.completions.length} shown` : ''),
    h('span', { class: 'answers' }, answersOf(group)),
    h('span', { class: 'actions' }, others.length ? h('button', { onclick: () => go({ id: group.id, step: '', beside: '', order: 'step' }) }, 'follow over steps') : null,
      others.length ? beside : null, h('a', { href: own, title: 'an address to send to somebody who has this file' }, 'link'))),
    h('div', { class: 'question' }, media(group, state.source),
      h('div', {}, h('pre', { class: 'prompt' }, ...marked(promptText(group.prompt), filters.words)), h('p', {}, 'gold ', h('code', { class: 'gold' }, describe(group.answer))))),
    h('table', {}, h('thead', {}, h('tr', {}, [completions, 'reward', 'components', 'advantage', 'tokens'].map((name) => h('th', {}, name)))), body));
  article.addEventListener('pointerover', (event) => highlight(article, event.target.closest('[data-completion]')?.dataset.completion));
  article.addEventListener('pointerleave', () => highlight(article, null));
  return article;
}

function said(completion, source, words, strongest) {
  if (completion.turns) return conversation(completion.turns, source, words);
  return completion.vision_use && !words ? lookedText(completion.vision_use, strongest) : completionText(completion.text, words);
}

function completionRow(completion, index, source, words, strongest) {
  const valid = completion.reward != null;
  const components = Object.entries(completion.components).map(([name, value]) => h('div', {}, `${name} ${short(value)}`));
  const flags = [completion.status !== 'ok' ? completion.status : null, completion.truncated ? 'truncated' : null, completion.loops ? 'repeats itself' : null].filter(Boolean);
  return h('tr', { 'data-completion': index, class: valid ? null : 'invalid' },
    h('td', { class: 'text' }, said(completion, source, words, strongest),
      flags.map((flag) => h('span', { class: 'flag' }, flag)), completion.error ? h('p', { class: 'error' }, completion.error) : null),
    h('td', { 'data-name': 'reward' }, valid ? short(completion.reward) : 'none'), h('td', { class: 'components' }, components),
    h('td', { 'data-name': 'advantage', class: completion.advantage > 0 ? 'up' : completion.advantage < 0 ? 'down' : null }, short(completion.advantage)),
    h('td', { 'data-name': 'tokens' }, short(completion.tokens)));
}

function highlight(article, index) {
  for (const shape of article.querySelectorAll('.box.predicted')) shape.classList.toggle('chosen', shape.dataset.completion === index);
}

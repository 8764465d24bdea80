'use strict';
// The rollout browser: filters, pages of prompts, one prompt over steps, two runs side by side.

const PAGE = 8;
const TAG = /(<\/?(?:think|answer)>)/;

// Marks the thought and the answer of a completion. Text nodes only, because completions may contain HTML.
function completionText(text) {
  let kind = text.includes('</think>') && !text.includes('<think>') ? 'thought' : 'plain';
  return text.split(TAG).filter(Boolean).map((piece) => {
    if (piece === '<think>') kind = 'thought';
    if (piece === '<answer>') kind = 'answer';
    const shown = TAG.test(piece) ? h('span', { class: `tag ${kind}` }, piece) : h('span', { class: kind }, piece);
    if (piece === '</think>' || piece === '</answer>') kind = 'plain';
    return shown;
  });
}

// The turns of a conversation with an environment: who spoke, what was said, and the pictures that a tool showed.
function conversation(turns, source) {
  return turns.map((turn) => h('div', { class: `turn ${turn.role}` }, h('b', {}, `${turn.role} `), completionText(turn.text), media(turn, source)));
}

function promptText(prompt) {
  return prompt.replace(/<\|im_start\|>assistant\s*$/, '').replace(/<\|im_(?:start|end)\|>/g, '').replace(/<\|vision_start\|>.*?<\|vision_end\|>/g, '▣ ').trim();
}

function describe(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function rollouts(section, state) {
  const filters = { step: '', task: '', status: '', low: '', high: '', words: '', order: 'step', id: null };
  const view = { page: 0 };
  const bar = h('div', { class: 'tools' }), note = h('p', { class: 'hint', 'aria-live': 'polite' }), list = h('div', { class: 'groups' });
  const pager = h('div', { class: 'tools' });
  section.append(bar, note, list, pager);

  function changed() { view.page = 0; draw(); }

  function select(name, label, options) {
    const box = h('select', { name, onchange: () => { filters[name] = box.value; changed(); } },
      options.map(([value, shown]) => h('option', { value, selected: filters[name] === value }, shown)));
    return h('label', {}, `${label} `, box);
  }

  function input(name, label, type, width) {
    const box = h('input', { name, type, step: 'any', value: filters[name], style: `width: ${width}em`, oninput: () => { filters[name] = box.value; changed(); } });
    return h('label', {}, `${label} `, box);
  }

  function drawBar() {
    const unique = (values) => [...new Set(values)].filter((value) => value != null);
    const steps = unique(state.groups.map((g) => g.step)).sort((a, b) => a - b);
    const tasks = unique(state.groups.map((g) => g.task)).sort();
    const statuses = unique(state.groups.flatMap((g) => g.completions.map((c) => c.status))).sort();
    bar.replaceChildren(
      select('step', 'step', [['', 'all'], ...steps.map((s) => [String(s), s])]),
      select('task', 'task', [['', 'all'], ...tasks.map((t) => [t, t])]),
      select('status', 'status', [['', 'all'], ['!', 'no valid reward'], ['truncated', 'truncated'], ...statuses.map((s) => [s, s])]),
      input('low', 'reward from', 'number', 5), input('high', 'to', 'number', 5), input('words', 'text', 'search', 14),
      select('order', 'order', [['step', 'by step'], ['worst', 'lowest reward first'], ['best', 'highest reward first'], ['spread', 'most varied first']]),
    );
  }

  function matches(group, completion) {
    const { status, low, high } = filters;
    if (status === '!' && completion.reward != null) return false;
    if (status === 'truncated' && !completion.truncated) return false;
    if (status && status !== '!' && status !== 'truncated' && completion.status !== status) return false;
    if (low !== '' && !(completion.reward >= +low && completion.reward != null)) return false;
    if (high !== '' && !(completion.reward <= +high && completion.reward != null)) return false;
    const words = filters.words.toLowerCase();
    return !words || [completion.text, ...(completion.turns || []).map((turn) => turn.text), group.prompt, group.id, describe(group.answer)].some((t) => t.toLowerCase().includes(words));
  }

  function matchingPrompts() {
    const items = new Map();
    for (const group of state.groups) {
      if (filters.id != null && group.id !== filters.id) continue;
      if (filters.step !== '' && String(group.step) !== filters.step) continue;
      if (filters.task && group.task !== filters.task) continue;
      const indices = group.completions.map((c, index) => index).filter((index) => matches(group, group.completions[index]));
      if (!indices.length) continue;
      const key = `${group.step} ${group.id}`;
      if (!items.has(key)) items.set(key, []);
      items.get(key).push({ group, indices });
    }
    return [...items.values()].sort(orders[filters.order]);
  }

  const rewardsOf = (item) => item.flatMap(({ group, indices }) => indices.map((i) => group.completions[i].reward)).filter((r) => r != null);
  const mean = (item) => { const rewards = rewardsOf(item); return rewards.reduce((a, b) => a + b, 0) / (rewards.length || 1); };
  const spread = (item) => { const rewards = rewardsOf(item); return rewards.length ? Math.max(...rewards) - Math.min(...rewards) : 0; };
  const byStep = (a, b) => a[0].group.step - b[0].group.step;
  const orders = {
    step: byStep,
    worst: (a, b) => mean(a) - mean(b) || byStep(a, b),
    best: (a, b) => mean(b) - mean(a) || byStep(a, b),
    spread: (a, b) => spread(b) - spread(a) || byStep(a, b),
  };

  function draw() {
    const items = matchingPrompts(), pages = Math.max(1, Math.ceil(items.length / PAGE));
    view.page = Math.min(view.page, pages - 1);
    const completions = items.reduce((sum, item) => sum + item.reduce((n, entry) => n + entry.indices.length, 0), 0);
    note.replaceChildren(`${items.length} prompts, ${completions} completions`,
      state.reading ? `; ${state.reading} steps are still being read` : '', ...followed(items));
    list.replaceChildren(...items.slice(view.page * PAGE, (view.page + 1) * PAGE).map((item) =>
      h('div', { class: item.length > 1 ? 'pair' : null }, item.map(card))));
    const turn = (by) => () => { view.page += by; draw(); section.scrollIntoView(); };
    pager.replaceChildren(
      h('button', { onclick: turn(-1), disabled: view.page === 0 }, '← earlier'), ` page ${view.page + 1} of ${pages} `,
      h('button', { onclick: turn(1), disabled: view.page >= pages - 1 }, 'later →'));
  }

  function followed(items) {
    if (filters.id == null) return [];
    const path = items.map((item) => `${item[0].group.step}: ${short(mean(item))}`).join('   ');
    return [h('span', {}, ` of prompt ${filters.id}; mean reward by step — ${path} `),
      h('button', { onclick: () => { filters.id = null; changed(); } }, 'all prompts')];
  }

  function card({ group, indices }) {
    const follow = () => { filters.id = group.id; filters.step = ''; filters.order = 'step'; drawBar(); changed(); };
    const rows = indices.map((index) => completionRow(group.completions[index], index));
    const article = h('article', {},
      h('header', {}, h('b', {}, group.id), ` step ${group.step}`, state.summary.runs.length > 1 ? ` · ${state.summary.runs[group.run].name}` : '',
        group.task ? ` · ${group.task}` : '', indices.length < group.completions.length ? ` · ${indices.length} of ${group.completions.length} shown` : '', ' ',
        filters.id == null ? h('button', { onclick: follow }, 'follow over steps') : null),
      h('div', { class: 'question' }, media(group, state.source),
        h('div', {}, h('pre', { class: 'prompt' }, promptText(group.prompt)), h('p', {}, 'gold ', h('code', { class: 'gold' }, describe(group.answer))))),
      h('table', {}, h('thead', {}, h('tr', {}, ['completion', 'reward', 'components', 'advantage', 'tokens'].map((name) => h('th', {}, name)))), h('tbody', {}, rows)));
    article.addEventListener('pointerover', (event) => highlight(article, event.target.closest('[data-completion]')?.dataset.completion));
    article.addEventListener('pointerleave', () => highlight(article, null));
    return article;
  }

  function completionRow(completion, index) {
    const valid = completion.reward != null;
    const components = Object.entries(completion.components).map(([name, value]) => h('div', {}, `${name} ${short(value)}`));
    const flags = [completion.status !== 'ok' ? completion.status : null, completion.truncated ? 'truncated' : null].filter(Boolean);
    return h('tr', { 'data-completion': index, class: valid ? null : 'invalid' },
      h('td', { class: 'text' }, completion.turns ? conversation(completion.turns, state.source) : completionText(completion.text),
        flags.map((flag) => h('span', { class: 'flag' }, flag)), completion.error ? h('p', { class: 'error' }, completion.error) : null),
      h('td', {}, valid ? short(completion.reward) : 'none'), h('td', { class: 'components' }, components),
      h('td', { class: completion.advantage > 0 ? 'up' : completion.advantage < 0 ? 'down' : null }, short(completion.advantage)),
      h('td', {}, completion.tokens));
  }

  function highlight(article, index) {
    for (const shape of article.querySelectorAll('.box.predicted')) shape.classList.toggle('chosen', shape.dataset.completion === index);
  }

  drawBar();
  draw();
  return () => { drawBar(); draw(); };
}

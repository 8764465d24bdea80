'use strict';
// The filters of the rollout browser: what they are, how the address holds them, what they let through.

const NO_FILTERS = { step: '', task: '', status: '', where: '', low: '', high: '', words: '', order: 'step', id: '', beside: '', page: '0' };
const CONDITION = /^\s*(\S+?)\s*(<=|>=|!=|=|<|>)\s*(none|-?\d*\.?\d+(?:e-?\d+)?)\s*$/i;

// `#rollouts?status=truncated&step=40-60`: what differs from no filter.
function addressOf(filters) {
  const set = Object.entries(filters).filter(([name, value]) => value !== NO_FILTERS[name]);
  return `#rollouts${set.length ? '?' : ''}${new URLSearchParams(set)}`;
}

function filtersIn(address) {
  const given = new URLSearchParams(address.split('?')[1] || '');
  const filters = { ...NO_FILTERS };
  for (const name of Object.keys(filters)) if (given.has(name)) filters[name] = given.get(name);
  return filters;
}

// `math = 1 and format < 1` as tests of a completion; null where it cannot be read.
function conditionsOf(where) {
  if (!where.trim()) return [];
  const tests = where.split(/\s+and\s+/i).map((part) => CONDITION.exec(part));
  return tests.every(Boolean) ? tests.map(([, name, sign, value]) => ({ name, sign, value: /none/i.test(value) ? null : +value })) : null;
}

function meets(completion, { name, sign, value }) {
  const own = name in completion.components ? completion.components[name] : ['reward', 'advantage', 'tokens'].includes(name) ? completion[name] : undefined;
  if (own === undefined) return false;
  if (value === null || own === null) return sign === '=' ? own === value : sign === '!=' && own !== value;
  const difference = own - value, equal = Math.abs(difference) < 1e-9;
  return { '=': equal, '!=': !equal, '<': difference < 0 && !equal, '>': difference > 0 && !equal, '<=': difference < 0 || equal, '>=': difference > 0 || equal }[sign];
}

function inSteps(step, wanted) {
  if (wanted === '') return true;
  const [first, last] = wanted.split('-').map(Number);
  return step >= first && step <= (last ?? first);
}

function hasStatus(completion, status) {
  if (status === '') return true;
  if (status === '!') return completion.reward == null;
  if (status === 'truncated' || status === 'loops') return Boolean(completion[status]);
  return completion.status === status;
}

function textsOf(group, completion) {
  return [completion.text, ...(completion.turns || []).map((turn) => turn.text), group.prompt, group.id, describe(group.answer)];
}

// A function that gives the indices of a group's completions that the filters let through.
function matcher(filters) {
  const conditions = conditionsOf(filters.where) || [], words = filters.words.toLowerCase();
  const within = (reward) => (filters.low === '' || (reward != null && reward >= +filters.low)) && (filters.high === '' || (reward != null && reward <= +filters.high));
  const lets = (group, completion) => hasStatus(completion, filters.status) && within(completion.reward)
    && conditions.every((condition) => meets(completion, condition))
    && (!words || textsOf(group, completion).some((text) => text.toLowerCase().includes(words)));
  return (group) => {
    if (filters.id && group.id !== filters.id) return [];
    const besides = filters.id && filters.beside && inSteps(group.step, filters.beside);
    if (!besides && !inSteps(group.step, filters.step)) return [];
    if (filters.task && group.task !== filters.task) return [];
    return group.completions.map((c, index) => index).filter((index) => lets(group, group.completions[index]));
  };
}

const meanOf = (values) => values.reduce((a, b) => a + b, 0) / (values.length || 1);

// Orders of prompts. An item is a prompt of one step: its groups, one per run, with the completions shown.
function orderOf(name) {
  const of = (key) => (item) => item.flatMap(({ group, indices }) => indices.map((i) => group.completions[i][key])).filter((value) => value != null);
  const most = (key) => (item) => of(key)(item).reduce((a, b) => Math.max(a, b), -Infinity);
  const least = (key) => (item) => of(key)(item).reduce((a, b) => Math.min(a, b), Infinity);
  const byStep = (a, b) => a[0].group.step - b[0].group.step;
  const by = (score, sign) => { const known = new Map(); const at = (item) => { if (!known.has(item)) known.set(item, score(item)); return known.get(item); }; return (a, b) => sign * (at(a) - at(b)) || byStep(a, b); };
  const mean = (item) => meanOf(of('reward')(item));
  const spread = (item) => (of('reward')(item).length ? most('reward')(item) - least('reward')(item) : 0);
  return {
    step: byStep, last: (a, b) => -byStep(a, b), worst: by(mean, 1), best: by(mean, -1), spread: by(spread, -1),
    longest: by(most('tokens'), -1), shortest: by(least('tokens'), 1), advantage: by(most('advantage'), -1), disadvantage: by(least('advantage'), 1),
  }[name] || byStep;
}

const ORDERS = [['step', 'by step'], ['last', 'last step first'], ['worst', 'lowest reward first'], ['best', 'highest reward first'], ['spread', 'most varied first'],
  ['longest', 'longest first'], ['shortest', 'shortest first'], ['advantage', 'highest advantage first'], ['disadvantage', 'lowest advantage first']];

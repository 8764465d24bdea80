'use strict';
// Elements are made here and nowhere else. What comes from data becomes a text node: never markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function short(number) {
  if (number == null) return '–';
  if (Number.isInteger(number)) return String(number);
  const size = Math.abs(number);
  return size > 0 && (size < 1e-3 || size >= 1e6) ? number.toExponential(1) : String(+number.toPrecision(4));
}

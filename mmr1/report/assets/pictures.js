'use strict';
// Images and video frames with the boxes drawn over them, in the coordinates of the original.

function boxShape(box, kind, label) {
  const [x1, y1, x2, y2] = box;
  return svg('rect', { x: x1, y: y1, width: x2 - x1, height: y2 - y1, class: `box ${kind}`, 'data-completion': label },
    label == null ? svg('title', {}, 'gold') : svg('title', {}, `completion ${label}`));
}

// A predicted box may lie outside the image; it is clipped at the edge.
function overlay(picture, group) {
  if (!group || !(group.gold || group.completions.some((c) => c.boxes))) return null;
  const shapes = [
    ...group.completions.flatMap((c, index) => (c.boxes || []).map((box) => boxShape(box, 'predicted', index))),
    ...(group.gold || []).map((box) => boxShape(box, 'gold', null)),
  ];
  return svg('svg', { class: 'overlay', viewBox: `0 0 ${picture.width} ${picture.height}`, preserveAspectRatio: 'none' }, shapes);
}

function drawPicture(picture, group) {
  if (picture.missing) return h('p', { class: 'missing' }, `${picture.kind} cannot be shown: ${picture.missing}`);
  const small = Math.max(picture.width, picture.height) <= 96;
  if (picture.kind === 'video') {
    return h('div', { class: 'frames' }, picture.frames.map((frame, index) => h('figure', {},
      h('img', { src: frame, alt: `frame ${index + 1}`, class: small ? 'pixels' : null }), h('figcaption', {}, `${picture.times[index]} s`))));
  }
  const scale = small ? Math.max(1, Math.floor(192 / picture.width)) : 1;
  const size = small ? `width: ${picture.width * scale}px` : null;
  return h('div', { class: 'picture', style: size },
    h('img', { src: picture.frames[0], alt: `${picture.width} × ${picture.height}`, title: `${picture.width} × ${picture.height} pixels`, class: small ? 'pixels' : null, style: size }),
    overlay(picture, group));
}

function media(group, source) {
  const holder = h('div', { class: 'media' });
  group.media.forEach(async (digest, index) => {
    const slot = h('div', { class: 'medium' });
    holder.append(slot);
    slot.append(drawPicture(await source.picture(digest), index === group.image ? group : null));
  });
  return holder;
}

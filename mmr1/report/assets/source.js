'use strict';
// The page's data: embedded in it, or, for a live report, requested from its server.

function text(id) {
  return document.getElementById(id).textContent;
}

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

function embeddedSource(summary) {
  const blocks = new Map();
  return {
    rollouts: (run, step) => unpack(text(`rollouts-${run}-${step}`)),
    picture: async (digest) => {
      const block = summary.blocks[digest];
      if (!blocks.has(block)) blocks.set(block, JSON.parse(text(`media-${block}`)));
      return blocks.get(block)[digest];
    },
  };
}

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function liveSource() {
  const pictures = new Map();
  return {
    summary: () => ask('summary'),
    rollouts: (run, step) => ask(`rollouts/${run}/${step}`),
    picture: (digest) => {
      if (!pictures.has(digest)) pictures.set(digest, ask(`media/${digest}`));
      return pictures.get(digest);
    },
  };
}

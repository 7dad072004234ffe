// Where the steps of a workflow go: layers along one axis, chosen by the longest way from a source.
// Edges that close a cycle run back on lanes beside the layers. `along` is the axis of the layers,
// `across` the other one; which of them is x is the caller's business.

const SWEEPS = 24;
const SETTLING = 60;
const PASSING = 12; // kept free for an edge that only passes a layer
const LANE = 16;

// nodes: [{name}], edges: [[from, to]], size: {along, across, layers, rows} in pixels.
// Gives {places: Map(name -> {along, across}), edges: [{from, to, back, via}], along, across}.
export function arrange(nodes, edges, size) {
  const names = nodes.map((node) => node.name);
  const known = new Set(names);
  const unique = new Map();
  for (const [from, to] of edges) {
    if (known.has(from) && known.has(to)) unique.set(JSON.stringify([from, to]), { from, to, via: [] });
  }
  const all = [...unique.values()];
  const back = closing(names, all);
  const forward = all.filter((edge) => !back.has(edge));
  const layer = layersOf(names, forward);
  const slotOf = (name) => ({ layer: layer.get(name), height: size.across, near: [] });
  const slots = new Map(names.map((name) => [name, slotOf(name)]));
  const columns = Array.from({ length: Math.max(0, ...layer.values()) + 1 }, () => []);
  for (const slot of slots.values()) columns[slot.layer].push(slot);
  for (const edge of forward) {
    let before = slots.get(edge.from);
    for (let at = before.layer + 1; at < layer.get(edge.to); at += 1) {
      const slot = { layer: at, height: PASSING, near: [], passing: true };
      columns[at].push(slot);
      edge.via.push(slot);
      connect(before, slot);
      before = slot;
    }
    connect(before, slots.get(edge.to));
  }
  order(columns);
  settle(columns, size.rows);
  return placed(slots, columns, all, back, size);
}

function connect(a, b) {
  a.near.push(b);
  b.near.push(a);
}

// The edges that lead back to a step which is still being visited, depth first.
function closing(names, edges) {
  const out = new Map(names.map((name) => [name, []]));
  const entered = new Set(edges.filter((edge) => edge.from !== edge.to).map((edge) => edge.to));
  for (const edge of edges) out.get(edge.from).push(edge);
  const back = new Set();
  const state = new Map();
  const roots = [...names.filter((name) => !entered.has(name)), ...names];
  for (const root of roots) {
    if (state.has(root)) continue;
    state.set(root, "open");
    const path = [[root, 0]];
    while (path.length) {
      const top = path.at(-1);
      const edge = out.get(top[0])[top[1]++];
      if (!edge) {
        state.set(top[0], "done");
        path.pop();
      } else if (state.get(edge.to) === "open") {
        back.add(edge);
      } else if (!state.has(edge.to)) {
        state.set(edge.to, "open");
        path.push([edge.to, 0]);
      }
    }
  }
  return back;
}

function layersOf(names, edges) {
  const layer = new Map(names.map((name) => [name, 0]));
  for (let round = 0; round < names.length; round += 1) {
    let moved = false;
    for (const { from, to } of edges) {
      if (layer.get(to) <= layer.get(from)) {
        layer.set(to, layer.get(from) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  // What nothing leads to stands just before its first consumer.
  const entered = new Set(edges.map((edge) => edge.to));
  for (const name of names) {
    const next = edges.filter((edge) => edge.from === name).map((edge) => layer.get(edge.to));
    if (!entered.has(name) && next.length) layer.set(name, Math.min(...next) - 1);
  }
  return layer;
}

// Each layer sorted by the mean place of its neighbours; the best of some sweeps counts.
function order(columns) {
  let best = columns.map((column) => [...column]);
  let fewest = crossings(columns);
  for (let sweep = 0; sweep < SWEEPS && fewest; sweep += 1) {
    const forward = sweep % 2 === 0;
    number(columns);
    for (const column of forward ? columns : [...columns].reverse()) {
      for (const slot of column) {
        const near = slot.near.filter((other) => other.layer < slot.layer === forward);
        slot.want = near.length ? near.reduce((sum, other) => sum + other.rank, 0) / near.length : slot.rank;
      }
      column.sort((a, b) => a.want - b.want);
      column.forEach((slot, rank) => (slot.rank = rank));
    }
    const found = crossings(columns);
    if (found < fewest) {
      fewest = found;
      best = columns.map((column) => [...column]);
    }
  }
  best.forEach((column, i) => columns[i].splice(0, column.length, ...column));
}

function number(columns) {
  for (const column of columns) column.forEach((slot, rank) => (slot.rank = rank));
}

function crossings(columns) {
  number(columns);
  let total = 0;
  for (const column of columns) {
    const ends = column.flatMap((slot) =>
      slot.near.filter((other) => other.layer > slot.layer).map((other) => [slot.rank, other.rank]),
    );
    ends.forEach(([a, b], i) => {
      for (const [c, d] of ends.slice(0, i)) if ((a - c) * (b - d) < 0) total += 1;
    });
  }
  return total;
}

// Move slots towards their neighbours as far as their order and distances allow.
function settle(columns, rows) {
  const middle = (slot) => slot.at + slot.height / 2;
  for (const column of columns) {
    let at = 0;
    for (const slot of column) {
      slot.at = at;
      at += slot.height + rows;
    }
  }
  for (let sweep = 0; sweep < SETTLING; sweep += 1) {
    for (const column of sweep % 2 ? [...columns].reverse() : columns) {
      const blocks = []; // runs of slots that touch: where they want to be, weight, how many
      let offset = 0;
      const offsets = [];
      for (const slot of column) {
        let moved = 0;
        let weight = 0.01;
        for (const other of slot.near) {
          const pull = slot.passing && other.passing ? 16 : slot.passing || other.passing ? 4 : 1;
          moved += pull * (middle(other) - middle(slot));
          weight += pull;
        }
        let run = { mean: slot.at + moved / weight - offset, weight, slots: 1 };
        while (blocks.length && blocks.at(-1).mean > run.mean) {
          const last = blocks.pop();
          const both = last.weight + run.weight;
          run = {
            mean: (last.mean * last.weight + run.mean * run.weight) / both,
            weight: both,
            slots: last.slots + run.slots,
          };
        }
        blocks.push(run);
        offsets.push(offset);
        offset += slot.height + rows;
      }
      const means = blocks.flatMap((run) => Array(run.slots).fill(run.mean));
      column.forEach((slot, i) => (slot.at = means[i] + offsets[i]));
    }
  }
}

function placed(slots, columns, edges, back, size) {
  const everything = columns.flat();
  const low = Math.min(...everything.map((slot) => slot.at));
  for (const slot of everything) slot.at -= low;
  const step = size.along + size.layers;
  const places = new Map(
    [...slots].map(([name, slot]) => [name, { along: slot.layer * step, across: slot.at }]),
  );
  let across = Math.max(0, ...everything.map((slot) => slot.at + slot.height));
  const lanes = [];
  const drawn = edges.map((edge) => {
    if (!back.has(edge)) {
      const via = edge.via.map((slot) => ({ along: slot.layer * step, across: slot.at + slot.height / 2 }));
      return { from: edge.from, to: edge.to, back: false, via };
    }
    const from = slots.get(edge.to).layer;
    const to = slots.get(edge.from).layer;
    const beside = everything.filter((slot) => slot.layer >= from && slot.layer <= to);
    let lane = Math.max(...beside.map((slot) => slot.at + slot.height)) + LANE;
    while (lanes.some((l) => Math.abs(l.lane - lane) < LANE && l.from <= to && l.to >= from)) lane += LANE;
    lanes.push({ lane, from, to });
    across = Math.max(across, lane + 2);
    return { from: edge.from, to: edge.to, back: true, lane };
  });
  return { places, edges: drawn, along: Math.max(0, columns.length * step - size.layers), across };
}

// The spans of a trace in rows, one row a step, those that overlap beside each other in lanes.

const MOST_LANES = 4;

export class Lanes {
  /** Rows of a Chrome trace, in the order of `names`; steps that never ran have none. Times become seconds. */
  static of(trace, names) {
    const rows = new Map(names.map((name) => [name, []]));
    for (const event of trace.traceEvents) {
      if (event.ph !== "X" || !rows.has(event.name)) continue;
      const { slot, batch } = event.args ?? {};
      rows.get(event.name).push({ step: event.name, from: event.ts / 1e6, to: (event.ts + event.dur) / 1e6, slot, batch });
    }
    return [...rows].filter(([, spans]) => spans.length).map(([name, spans]) => new Lanes(name, spans));
  }

  constructor(name, spans) {
    this.name = name;
    this.spans = spans.sort((one, other) => one.from - other.from);
    this.end = spans.reduce((end, span) => Math.max(end, span.to), 0);
    this.lanes = [];
    for (const span of this.spans) this.place(span);
  }

  place(span) {
    let number = this.lanes.findIndex((lane) => lane.end <= span.from);
    if (number < 0 && this.lanes.length < MOST_LANES) number = this.lanes.push(new Lane()) - 1;
    span.lane = number < 0 ? MOST_LANES - 1 : number;
    this.lanes[span.lane].push(span);
  }
}

class Lane {
  constructor() {
    this.spans = [];
    this.end = 0;
  }

  push(span) {
    this.spans.push(span);
    this.end = Math.max(this.end, span.to);
    span.reach = this.end; // so that those that may reach into a window can be found by halving
  }

  /** The first place whose span may reach to a time. */
  first(time) {
    let [low, high] = [0, this.spans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].reach < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** [from, to] of what lies in a window; what is closer than `gap` is one. */
  *pieces(from, to, gap) {
    let piece = null;
    for (let place = this.first(from); place < this.spans.length && this.spans[place].from <= to; place += 1) {
      const span = this.spans[place];
      if (piece && span.from - piece[1] < gap) piece[1] = Math.max(piece[1], span.to);
      else {
        if (piece) yield piece;
        piece = [span.from, span.to];
      }
    }
    if (piece) yield piece;
  }

  /** The span at a time, or one that is not further away than `slack`. */
  at(time, slack) {
    for (let place = this.first(time - slack); place < this.spans.length; place += 1) {
      const span = this.spans[place];
      if (span.from > time + slack) return undefined;
      if (span.to >= time - slack) return span;
    }
    return undefined;
  }
}

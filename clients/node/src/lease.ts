/** Between two questions, in ms. */
const leastPauseMs = 50;
/** For an answer, also if the lease has ended while the app kept the event loop busy, in ms. */
const leastPatienceMs = 250;

/** What a lease asks its session. */
interface Holder {
  /** Whether the session holds locks of this lease. */
  isUsed(): boolean;
  /** Asks for one of them. Returns for how many ms from the question on the app may rely on the lease, or undefined if the lock has gone. */
  ask(timeoutMs: number): Promise<number | undefined>;
  /** The lease has ended by the clock here. */
  over(): void;
}

/**
 * Lease knows how long the locks of one TTL are held without news from the sidecar. A sidecar that hangs renews nothing and says
 * nothing, and at the end of the lease others get its locks. So while there are such locks, the session asks for one of them at
 * each third of the lease. The answer is news of all, because a sidecar that answers also tells of lost locks.
 */
export class Lease {
  #until = Number.NEGATIVE_INFINITY;
  #due = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(readonly holder: Holder) {}

  /** prove notes news of the lease: the app may rely on it for some ms from the question on. */
  prove(asked: number, ms: number): void {
    this.#until = Math.max(this.#until, asked + ms);
    this.#plan();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #plan(): void {
    const now = performance.now();
    this.#due = now + Math.max((this.#until - now) / 3, leastPauseMs);
    this.#timer ??= setTimeout(() => this.#wake(), this.#due - now).unref();
  }

  #wake(): void {
    this.#timer = undefined;
    if (!this.holder.isUsed()) {
      return; // the next grant plans again
    }
    const early = this.#due - performance.now(); // there was news meanwhile
    if (early > 1) {
      this.#timer = setTimeout(() => this.#wake(), early).unref();
    } else {
      void this.#ask();
    }
  }

  async #ask(): Promise<void> {
    const asked = performance.now();
    const patienceMs = Math.max(this.#until - asked, leastPatienceMs);
    try {
      const ms = await this.holder.ask(patienceMs);
      if (ms !== undefined) {
        this.#until = Math.max(this.#until, asked + ms);
      }
    } catch {
      const now = performance.now();
      // If the limit came late, the app has kept the event loop from reading the answer.
      if (now >= this.#until && now - asked < patienceMs + leastPatienceMs) {
        this.holder.over();
        return;
      }
    }
    this.#plan();
  }
}

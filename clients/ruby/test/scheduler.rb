# frozen_string_literal: true

# The least scheduler of fibers, for tests: after the one in Ruby's own tests.
class Scheduler
  def initialize
    @readable, @writable, @waiting, @blocked, @ready = {}, {}, {}, {}, []
    @mutex = Mutex.new
    @urgent = IO.pipe
  end

  def run
    turn until @readable.empty? && @writable.empty? && @waiting.empty? && @blocked.empty? && @mutex.synchronize { @ready.empty? }
  end

  def close
    run
  ensure
    @urgent.each(&:close)
  end

  def io_wait(io, events, timeout)
    fiber = Fiber.current
    @readable[fiber] = io if events.anybits?(IO::READABLE)
    @writable[fiber] = io if events.anybits?(IO::WRITABLE)
    @waiting[fiber] = now + timeout if timeout
    Fiber.yield
  ensure
    [@readable, @writable, @waiting].each { |waits| waits.delete(fiber) }
  end

  def kernel_sleep(duration = nil) = block(:sleep, duration)

  def block(_blocker, timeout = nil)
    fiber = Fiber.current
    @waiting[fiber] = now + timeout if timeout
    @blocked[fiber] = true
    Fiber.yield
  ensure
    @waiting.delete(fiber)
    @blocked.delete(fiber)
  end

  def unblock(_blocker, fiber)
    @mutex.synchronize { @ready << fiber }
    @urgent[1].write_nonblock(".")
  end

  def fiber(&block) = Fiber.new(blocking: false, &block).tap(&:resume)

  def process_wait(pid, flags) = Thread.new { Process::Status.wait(pid, flags) }.value

  private

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def turn
    left = @waiting.empty? ? nil : [@waiting.values.min - now, 0].max
    left = 0 if @mutex.synchronize { @ready.any? }
    read, write, = IO.select([*@readable.values, @urgent[0]], @writable.values, [], left)
    @urgent[0].read_nonblock(1024, exception: false) if read&.include?(@urgent[0])
    due(read || [], write || []).each { |fiber, events| fiber.resume(events) if fiber.alive? }
  end

  def due(read, write)
    fibers = {}
    @readable.each { |fiber, io| fibers[fiber] = IO::READABLE if read.include?(io) }
    @writable.each { |fiber, io| fibers[fiber] = IO::WRITABLE if write.include?(io) }
    @waiting.each { |fiber, at| fibers[fiber] ||= false if at <= now }
    @mutex.synchronize { @ready.slice!(0..) }.each { |fiber| fibers[fiber] = true if @blocked.key?(fiber) }
    fibers
  end
end

# frozen_string_literal: true

require_relative "helper"

# Proves: client interrupts
# Threads that wait for each other, and one of them is interrupted.
class GuardTest < TestCase
  class Struck < StandardError; end

  def test_an_interruption_takes_no_turn_with_it
    turn = Locksidecar::Inside.fetch(:Turn).new
    struck = other = nil
    turn.take do
      struck = waiting { turn.take { :taken } }
      other = waiting { turn.take { :taken } }
      struck.raise(Struck) # and this turn ends
    end
    assert_raises(Struck) { struck.value }
    assert_equal :taken, (other.join(LONG) or flunk("the other one waits on")).value
  end

  private

  # A thread that waits.
  def waiting
    Thread.new { yield }.tap do |thread|
      thread.report_on_exception = false
      Thread.pass until thread.stop?
    end
  end
end

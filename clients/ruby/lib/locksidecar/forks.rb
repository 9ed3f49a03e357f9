# frozen_string_literal: true

module Locksidecar
  # What happens in the child of a fork.
  #
  # A connection, and so its session, lives as long as any process has its descriptor. So a child closes its copies of the
  # parent's descriptors, which does not end the connections, before anything else runs there. No fork comes between the
  # creation of a socket and its note.
  # @api private
  module Forks
    @guard = Guard.new
    @pid = Process.pid
    @users = []

    class << self
      # Calls `user.forked` in the child of each fork, until `user.closed`. The list has the users themselves, not weak
      # references: among those, a child of Ruby 3.1 once met one that was being collected, and crashed.
      def register(user)
        without { @users = @users.reject(&:closed) << user }
      end

      # In this block nobody forks.
      def without(&part) = @guard.synchronize(&part)

      # Notices forks that Ruby did not tell, such as those of an extension in C.
      def check
        child unless Process.pid == @pid
      end

      # Forks by the block.
      def around
        guard = @guard
        begin
          guard = nil unless guard.lock
          pid = yield
          child if pid.is_a?(Integer) ? pid.zero? : Process.pid != @pid
          pid
        ensure
          guard&.unlock
        end
      end

      # The other threads are gone, and their mutexes are of no use.
      def child
        @pid = Process.pid
        @guard = Guard.new
        @users.each(&:forked)
      end
    end

    # Ruby calls `_fork` for each kind of fork, except for that of `daemon`.
    module Hook
      def _fork = Forks.around { super }

      def daemon(...) = Forks.around { super }
    end
    Process.singleton_class.prepend(Hook)
  end
  private_constant :Forks
end

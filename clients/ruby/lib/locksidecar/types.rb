# frozen_string_literal: true

require "time"

module Locksidecar
  # The holder of a lock. `held` and `expires_in` are seconds, `acquired_at` is informative.
  Holder = Struct.new(:instance, :pod, :session, :owner, :acquired_at, :held, :expires_in, :data, :traceparent,
                      keyword_init: true) do
    # @api private
    def self.from_json(value)
      value && new(instance: value["instance"], pod: value["pod"], session: value["session"], owner: value["owner"],
                   acquired_at: Time.iso8601(value["acquired_at"]), held: value["held_ms"] / 1000.0,
                   expires_in: value["expires_in_ms"] / 1000.0, data: value["data"],
                   traceparent: value["traceparent"]).freeze
    end
  end

  # A request to the holder to stop. `requested_at` is nil in what a lock tells.
  Stopping = Struct.new(:reason, :requested_at, keyword_init: true) do
    # @api private
    def self.from_json(value)
      at = value && value["requested_at"]
      value && new(reason: value["reason"], requested_at: at && Time.iso8601(at)).freeze
    end
  end

  # One of the holders of a shared lock. `token` is nil if the sidecar's database role may only read, `slot` without a
  # limit.
  SharedHolder = Struct.new(:holder, :token, :slot, :stopping, keyword_init: true) do
    # @api private
    def self.from_json(value)
      new(holder: Holder.from_json(value), token: value["token"], slot: value["slot"],
          stopping: Stopping.from_json(value["stopping"])).freeze
    end
  end

  # One lock. `state` is :free or :held. `token` is nil unless this client's session holds it. `mode` and `holder` are
  # nil if it is free. Of a shared lock, `holder` was granted first, and `holders` has the first 100. `kept`: the sidecar
  # of the holder may keep the lock for its next session, so perhaps nobody holds it now.
  LockInfo = Struct.new(:key, :type, :state, :mine, :token, :mode, :limit, :holder, :kept, :holders, :holders_count,
                        :queue_length, :stopping, keyword_init: true) do
    # @api private
    def self.from_json(value)
      new(key: value["key"], type: value["type"], state: value["state"].to_sym, mine: value["mine"],
          token: value["token"], mode: value["mode"]&.to_sym, limit: value["limit"],
          holder: Holder.from_json(value["holder"]), kept: value.fetch("kept", false),
          holders: value.fetch("holders", []).map { |one| SharedHolder.from_json(one) }.freeze,
          holders_count: value.fetch("holders_count", 0), queue_length: value["queue_length"],
          stopping: Stopping.from_json(value["stopping"])).freeze
    end

    # @return [Boolean]
    def free? = state == :free

    # @return [Boolean]
    def held? = state == :held

    # @return [Boolean] whether this client's session holds it
    def mine? = mine
  end

  # A call that waits for a lock. `position` is 1 for the first call of the key, `waiting` is seconds.
  Waiter = Struct.new(:key, :position, :pod, :session, :owner, :mode, :limit, :waiting, :traceparent,
                      keyword_init: true) do
    # @api private
    def self.from_json(value)
      new(key: value["key"], position: value["position"], pod: value["pod"], session: value["session"],
          owner: value["owner"], mode: value["mode"].to_sym, limit: value["limit"],
          waiting: value["waiting_ms"] / 1000.0, traceparent: value["traceparent"]).freeze
    end
  end

  # The version of a sidecar, and its features.
  Description = Struct.new(:version, :api, :features, keyword_init: true)

  # An event of a watched key. `type` is :state (the first one), :acquired, :released, :expired, :stopping, or one of a
  # newer sidecar. `data` has the API's members.
  Event = Struct.new(:type, :key, :data, keyword_init: true)

  # The state of a held lock: the answer to check, extend, update and downgrade. An app may rely on the lock for
  # `expires_in` seconds without news from the sidecar.
  Status = Struct.new(:key, :token, :session, :bind, :mode, :limit, :slot, :reentry, :expires_in, :waited,
                      :acquired_at, :stopping, keyword_init: true) do
    # @api private
    def self.from_json(value)
      new(key: value["key"], token: value["token"], session: value["session"], bind: value["bind"].to_sym,
          mode: value.fetch("mode", "exclusive").to_sym, limit: value["limit"], slot: value["slot"],
          reentry: value["reentry"], expires_in: value["expires_in_ms"] / 1000.0, waited: value["waited_ms"] / 1000.0,
          acquired_at: Time.iso8601(value["acquired_at"]), stopping: Stopping.from_json(value["stopping"])).freeze
    end
  end
end

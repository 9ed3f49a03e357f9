# frozen_string_literal: true

require_relative "helper"
require_relative "contract/player"
require_relative "tcp"
require "yaml"

# The contract suite, on the stores of CONTRACT_STORES, and over TCP with TLS on memory.
class ContractTest < Minitest::Test
  SUITE = File.expand_path("../../contract", __dir__)
  FILES = Dir[File.join(SUITE, "cases", "*.yaml")].to_h { |file| [File.basename(file, ".yaml"), YAML.safe_load_file(file)] }
  GIVEN = JSON.parse(ENV.fetch("CONTRACT_STORE", "{}")) # the settings of one store
  STORES = GIVEN.empty? ? ENV.fetch("CONTRACT_STORES", "memory postgres etcd mysql redis").split : ["given"]

  # The URL of a store, whose server runs until the end.
  def self.url(store)
    @urls ||= Hash.new do |urls, name|
      server = IO.popen(["python3", File.join(SUITE, "curl", "processes.py"), name], "r+")
      Minitest.after_run { server.close }
      urls[name] = server.gets&.chomp or raise "#{name} has not started"
    end
    @urls[store]
  end

  STORES.each do |store|
    FILES.each do |name, file|
      next if file.fetch("sidecar", {}).key?("STORE_URL") && (GIVEN.any? || store != STORES[0]) # it runs once

      define_method("test_#{name}_on_#{store}") { play(name, file, store) }
      define_method("test_#{name}_over_tls") { play(name, file, store, tls: true) } if store == "memory"
    end
  end

  AUTHORITY = Tcp::Authority.new

  def test_there_are_cases = assert_operator(FILES.size, :>=, 10)

  private

  def play(name, file, store, tls: false)
    settings = GIVEN.empty? ? { "STORE_URL" => ContractTest.url(store) } : GIVEN
    settings = { "LOG_LEVEL" => "warn", "NAMESPACE" => "rb-#{name}", "ALLOW_FORCE" => "false", **settings,
                 **file.fetch("sidecar", {}), **(tls ? { LOG_LEVEL: "info", **AUTHORITY.settings } : {}).transform_keys(&:to_s) }
    sidecar = Locksidecar::Testing::Sidecar.new(**settings.transform_keys(&:to_sym))
    sidecar.start(ready: file.fetch("ready", true))
    where = { socket: sidecar.path }
    where = { url: "https://localhost:#{Tcp.port(sidecar)}", token_file: Tcp.write(Tcp::TOKEN), ca_file: AUTHORITY.file } if tls
    check_features(sidecar, file)
    wrong = file["cases"].filter_map do |one|
      Contract::Player.new(sidecar, **where).play(one["steps"])
      nil
    rescue Contract::Failed => e
      "#{one["name"]}: #{e.message}"
    end
    assert_empty wrong, sidecar.log
  ensure
    sidecar&.close
  end

  def check_features(sidecar, file)
    client = Locksidecar::Client.new(sidecar.path)
    lacking = file["cases"].flat_map { |one| one.fetch("features", []) } - client.describe.features
    assert_empty lacking, "cases would not be run"
  ensure
    client&.close
  end
end

# frozen_string_literal: true

require_relative "helper"

# The examples of the README, and of the first page, run, except those of frameworks.
class PagesTest < TestCase
  PAGES = %w[../README.md ../../../README.md].map { |page| File.read(File.expand_path(page, __dir__)) }
  BLOCKS = PAGES.join.scan(/^```ruby\n(.*?)^```$/m).flatten
  Report = Struct.new(:lock) do
    def ended_with?(text) = text == "lock lost" && lock.wait_lost(60)
  end

  # What the examples use of an app.
  class App
    attr_reader :done, :client, :locksidecar

    def initialize(client, sidecar)
      @client, @locksidecar = client, sidecar
      @done = []
    end

    def write(**named) = done << named

    def puts(text) = done << text

    def work(part) = done << part

    def parts = %w[a b]

    def start_report = Report.new(client.acquire("report:daily"))

    def assert(value) = done << value
  end

  def test_the_examples_run
    assert_equal 5, BLOCKS.size
    before = ENV.fetch("LOCKSIDECAR_SOCKET", nil)
    ENV.update(sidecar.env)
    BLOCKS.grep_v(/< ApplicationJob/).each do |code|
      app = App.new(new_client(sidecar.path), sidecar)
      app.instance_eval(code, "README.md")
      app.singleton_methods(false).grep(/\Atest_/).each { |test| app.public_send(test) }
      refute_empty app.done, code
      refute_includes app.done, false
    end
  ensure
    ENV["LOCKSIDECAR_SOCKET"] = before
  end
end

# frozen_string_literal: true

require "json"

module Locksidecar
  # HTTP/1.1 and server-sent events, as bytes in and bytes out, without I/O. Only what the sidecar speaks: one request
  # after the other, and answers with a length or in chunks.
  # @api private
  module Wire
    MAX_HEAD = 64 * 1024

    # One complete answer.
    Answer = Struct.new(:status, :head, :body) do
      # The value of a header; empty if there is none.
      def header(name) = Wire.header(head, name)

      # Whether the connection closes after it.
      def last? = header("connection").casecmp?("close")

      def json
        JSON.parse(body)
      rescue JSON::ParserError
        raise ProtocolError, "the answer (status #{status}) is not JSON, but #{body[0, 80].inspect}: is this the " \
                             "socket of a locksidecar?"
      end

      # The body of a success. Raises the error of anything else.
      def result
        return json if status.between?(200, 299)

        raise Problem.error(json, status, header("retry-after"))
      end
    end

    # Only these headers matter, so the others are not parsed. A pattern that is made for each call would take a seventh of its
    # time.
    HEADERS = %w[content-length transfer-encoding connection retry-after].to_h do |name|
      [name, /^#{name}:[ \t]*([^\r\n]*?)[ \t]*\r?$/i]
    end.freeze

    def self.header(head, name) = head[HEADERS.fetch(name), 1].to_s

    # Builds a request. `headers` are more lines, each with its line end.
    def self.request(method, target, headers, body)
      length = "Content-Length: #{body.bytesize}\r\n" unless body.empty? && method == "GET"
      "#{method} #{target} HTTP/1.1\r\n#{headers}#{length}\r\n".b << body.b
    end

    # A text as a part of a path or a query.
    def self.quote(text) = text.b.gsub(/[^A-Za-z0-9._~-]/n) { |byte| format("%%%02X", byte.ord) }

    # The path of a lock.
    def self.lock_path(key, rest = "") = "/v1/locks/#{quote(Check.text(:key, key))}#{rest}"

    # A query without what is nil, or nothing.
    def self.query(**given)
      given = given.compact
      given.empty? ? "" : "?#{given.map { |name, value| "#{name}=#{quote(value.to_s)}" }.join("&")}"
    end

    # Parses one answer as its bytes arrive.
    class AnswerParser
      attr_reader :status

      def initialize
        @buffer = String.new(encoding: Encoding::BINARY)
        @head = @length = @chunks = nil
      end

      # Whether the head is complete and a body in chunks follows: see `rest`.
      def streaming? = !@chunks.nil?

      # Takes more bytes. Returns the answer when it is complete.
      def feed(data)
        @buffer << data
        return unless @head || read_head
        return if @chunks || @buffer.bytesize < @length

        Answer.new(@status, @head, @buffer.byteslice(0, @length).force_encoding(Encoding::UTF_8))
      end

      # The part of a body in chunks that arrived since the last call, decoded.
      def rest
        data = @chunks.feed(@buffer)
        @buffer.clear
        data
      end

      private

      def read_head
        until (ends = @buffer.index("\r\n\r\n")).nil?
          head = @buffer.slice!(0, ends + 4)
          @status = head[%r{\AHTTP/1\.1 (\d{3})}, 1]&.to_i or raise not_http(head)
          next if @status < 200 && @status != 101 # such as 103 Early Hints of a proxy: the answer follows

          @head = head
          read_framing
          return true
        end
        raise not_http if @buffer.bytesize > MAX_HEAD || !"HTTP/1.1 ".start_with?(@buffer[0, 9])

        false
      end

      def read_framing
        length = Wire.header(@head, "content-length")
        if length.match?(/\A\d+\z/)
          @length = length.to_i
        elsif Wire.header(@head, "transfer-encoding").casecmp?("chunked")
          @chunks = Chunks.new
        else
          raise not_http(@head)
        end
      end

      def not_http(data = @buffer)
        ProtocolError.new("the answer is not HTTP/1.1, but #{data[0, 40].inspect}: is this the socket of a locksidecar?")
      end
    end

    # Removes the framing from a body in chunks.
    class Chunks
      def initialize
        @buffer = String.new(encoding: Encoding::BINARY)
        @left = 0 # bytes left of this chunk and its line end
        @ended = false
      end

      # Takes more bytes. Returns their content.
      def feed(data)
        @buffer << data
        content = String.new(encoding: Encoding::BINARY)
        until @ended
          break if @left.zero? && !read_size

          piece = @buffer.slice!(0, @left)
          break if piece.empty?

          content << piece.byteslice(0, (@left - 2).clamp(0, piece.bytesize))
          @left -= piece.bytesize
        end
        content
      end

      private

      def read_size
        ends = @buffer.index("\r\n") or return false
        size = Integer(@buffer.slice!(0, ends + 2)[/\A\h+/].to_s, 16)
        @ended = size.zero?
        @left = size + 2
        !@ended
      end
    end

    # Parses an answer that is an event stream into names and their JSON.
    class StreamParser
      def initialize
        @head = AnswerParser.new
        @buffer = String.new(encoding: Encoding::BINARY)
      end

      # Takes more bytes. Returns the events that they complete, without comments. Raises the error if the answer is a
      # problem.
      def feed(data)
        if (answer = @head.feed(data))
          answer.result
          raise ProtocolError, "the answer is not an event stream: is this the socket of a locksidecar?"
        end
        return [] unless @head.streaming?

        @buffer << @head.rest
        found = []
        while (ends = @buffer.index("\n\n"))
          event = parse(@buffer.slice!(0, ends + 2).force_encoding(Encoding::UTF_8))
          found << event if event
        end
        found
      rescue JSON::ParserError, ArgumentError => e
        raise ProtocolError, "the event stream is broken (#{e.message}): is this the socket of a locksidecar?"
      end

      private

      def parse(block)
        name = "message"
        lines = []
        block.each_line(chomp: true) do |line|
          field, value = line.split(":", 2)
          value = value.to_s.delete_prefix(" ")
          name = value if field == "event"
          lines << value if field == "data"
        end
        [name, JSON.parse(lines.join("\n"))] unless lines.empty?
      end
    end
  end
  private_constant :Wire
end

# frozen_string_literal: true

require_relative "helper"
require "rbs"

# The types in sig name what the code has. test.sh also runs tests whose calls are compared with the types.
class TypesTest < Minitest::Test
  def self.classes
    loader = RBS::EnvironmentLoader.new
    loader.add(path: Pathname(__dir__).join("../sig"))
    RBS::Environment.from_loader(loader).resolve_type_names.class_decls.filter_map do |name, entry|
      next unless name.to_s.match?(/\A::Locksidecar\b(?!::(Jobs|ActiveJob|Sidekiq|Testing::Minitest))/)

      [Object.const_get(name.to_s), entry.decls.flat_map { |one| one.decl.members }.grep_v(RBS::AST::Members::Include)]
    end
  end

  CLASSES = classes.to_h

  # Public for other parts of the client, or for irb.
  ASIDE = %i[transport grant inspect].freeze

  def test_each_has_the_methods_of_the_other
    assert_operator CLASSES.size, :>=, 30
    CLASSES.each do |made, members|
      of_itself, of_objects = members.grep_v(RBS::AST::Declarations::Base).partition { |one| one.kind == :singleton }
      of_itself.each { |one| assert_respond_to made, one.name }
      public = made.public_instance_methods(false) - ASIDE
      public.reject! { |name| name.end_with?("=") } if made < Struct
      assert_equal public.sort, of_objects.map(&:name).uniq.sort - [:initialize], made
    end
  end

  def test_each_way_to_acquire_has_the_options
    all = Locksidecar::Inside[:Options].instance_method(:initialize).parameters.map(&:last)
    { lock: all + [:on_loss], acquire: all, try_acquire: all - %i[wait on_success], acquire_many: all - [:on_success] }
      .each do |name, options|
        call = CLASSES[Locksidecar::Client].find { |one| one.respond_to?(:name) && one.name == name }
        assert_equal options.sort, call.types.first.type.optional_keywords.keys.sort, name
      end
  end
end

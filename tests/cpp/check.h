// A test is TEST(name) { CHECK(cond); CHECK_EQ(got, want); }. A failed check prints where and what,
// and ends the program with status 1. `rooms.py` makes one program of all test files of a room:
// each file has a namespace of its own there, and the program's arguments select the tests to run.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace rose::test {

struct Case {
  std::string_view file;
  std::string_view name;
  std::function<void()> body;
};

// Filled before main by TEST, in the order of each file.
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(std::string_view file, std::string_view name, std::function<void()> body) {
    cases().push_back({file, name, std::move(body)});
  }
};

// Ends at once, without destructors: other threads may still use the objects.
[[noreturn]] inline void fail(const char* file, int line) {
  std::cerr.flush();
  std::fprintf(stderr, "%s:%d: check failed\n", file, line);
  std::fflush(nullptr);
  ::_exit(1);
}

template <typename T>
void show(const char* expression, const T& value) {
  std::cerr << "  " << expression;
  if constexpr (requires { std::cerr << value; }) {
    std::cerr << " = " << value;
  } else if constexpr (std::is_enum_v<T>) {
    std::cerr << " = " << static_cast<long long>(value);
  }
  std::cerr << '\n';
}

template <typename T>
constexpr bool is_number =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char>;

template <typename Got, typename Want>
bool equal(const Got& got, const Want& want) {
  if constexpr (is_number<Got> && is_number<Want>) {
    return std::cmp_equal(got, want);  // a literal is an int; a count is not
  } else {
    return got == want;
  }
}

// Runs the tests of files that end in the first argument with the name of the second; a missing
// argument selects all. Returns 1 if there is no such test.
inline int run(int count, char** arguments) {
  int found = 0;
  for (const Case& one : cases()) {
    if (count > 1 && !one.file.ends_with(arguments[1])) continue;
    if (count > 2 && one.name != arguments[2]) continue;
    std::fprintf(stderr, "%.*s\n", static_cast<int>(one.name.size()), one.name.data());
    one.body();
    ++found;
  }
  return found == 0 ? 1 : 0;
}

}  // namespace rose::test

#define TEST(name)                                                                         \
  static void test_##name();                                                               \
  static const rose::test::Registration registration_##name{__FILE__, #name, test_##name}; \
  static void test_##name()

#define CHECK(condition)                          \
  do {                                            \
    if (!(condition)) {                           \
      std::fprintf(stderr, "  %s\n", #condition); \
      rose::test::fail(__FILE__, __LINE__);       \
    }                                             \
  } while (false)

#define CHECK_EQ(got, want)                          \
  do {                                               \
    const auto& check_got = (got);                   \
    const auto& check_want = (want);                 \
    if (!rose::test::equal(check_got, check_want)) { \
      rose::test::show(#got, check_got);             \
      rose::test::show(#want, check_want);           \
      rose::test::fail(__FILE__, __LINE__);          \
    }                                                \
  } while (false)

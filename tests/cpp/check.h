// A test program in three words: TEST(name) { CHECK(cond); CHECK_EQ(got, want); } and, once per
// program, TEST_MAIN(). A failed check prints where and what, and ends the program with status 1.
#pragma once

#include <pthread.h>
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
  std::string_view name;
  std::function<void()> body;
};

// Filled before main by TEST, in the order of the file.
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(std::string_view name, std::function<void()> body) {
    cases().push_back({name, std::move(body)});
  }
};

// Ends at once, without destructors: other threads may still use what they would destroy.
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

inline int run_all() {
  for (const Case& one : cases()) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(one.name.size()), one.name.data());
    one.body();
  }
  return cases().empty() ? 1 : 0;
}

}  // namespace rose::test

#define TEST(name)                                                               \
  static void test_##name();                                                     \
  static const rose::test::Registration registration_##name{#name, test_##name}; \
  static void test_##name()

#define TEST_MAIN() \
  int main() { return rose::test::run_all(); }

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

#ifdef ROSE_TEST_ONE_THREAD
// In the place of the library's: a program that nobody says has threads is not run under
// ThreadSanitizer, so it must have none.
extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs("a thread: say so in a comment, and ThreadSanitizer sees this program\n", stderr);
  rose::test::fail(__FILE__, __LINE__);
}
#endif

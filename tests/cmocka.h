/* cmocka.h - cmocka with the headers that it wants included before itself. */
#ifndef KVA_TESTS_CMOCKA_H
#define KVA_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif

/* stop.c - the handler and its flag. */
#include "cli/stop.h"

#include "base/kva.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* File scope, because a handler has no other way to reach it. */
static atomic_bool stopped;
static volatile sig_atomic_t stopped_by;

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction former[KVA_COUNT_OF(numbers)];

static void on_signal(int number)
{
    stopped_by = number;
    atomic_store(&stopped, true);
}

const atomic_bool *kva_cli_stop_begin(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    atomic_store(&stopped, false);
    stopped_by = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++) {
        sigaction(numbers[i], &action, &former[i]);
        if (former[i].sa_handler == SIG_IGN)
            sigaction(numbers[i], &former[i], NULL);
    }
    return &stopped;
}

/* A shell wants to know that its command has ended by the signal, and not by itself. */
void kva_cli_stop_end(const char *message)
{
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++)
        sigaction(numbers[i], &former[i], NULL);
    if (!stopped_by)
        return;
    if (write(STDERR_FILENO, message, strlen(message)) < 0) {
        /* Nobody reads it. */
    }
    raise(stopped_by);
}

/* child.c - start another program, read what it says, end it. */
#include "hub/child.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_MS         100
#define GRACE_MS        3000u
#define ERRORS_BYTES    ((size_t)64 << 10)
#define ENVIRONMENT_MAX 4096u

extern char **environ;

struct child {
    const struct kva_hub_child_params *params;
    pid_t pid;
    int out, errors; /* read ends; -1: closed */
    bool stopped;    /* `output` wants no more */
};

/* --- start ----------------------------------------------------------------------------------- */

/* This process's environment with another TMPDIR; the caller frees both. */
static char **make_environment(const char *temporary, char **ret_variable)
{
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **made = count < ENVIRONMENT_MAX ? calloc(count + 2, sizeof(*made)) : NULL;
    struct kva_buf variable;
    kva_buf_init(&variable, 8192);
    kva_buf_printf(&variable, "TMPDIR=%s", temporary);
    *ret_variable = kva_buf_take(&variable, NULL);
    if (!made || !*ret_variable) {
        free(made);
        free(*ret_variable);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "TMPDIR=", 7) != 0)
            made[kept++] = environ[i];
    }
    made[kept] = *ret_variable;
    return made;
}

static int spawn(struct child *child, int out, int errors, char **environment)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&files))
        return ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int why = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!why)
        why = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (!why)
        why = posix_spawn_file_actions_adddup2(&files, errors, STDERR_FILENO);
    if (!why)
        why = posix_spawn_file_actions_addchdir_np(&files, child->params->folder);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
    if (!why)
        why = posix_spawnp(&child->pid, child->params->argv[0], &files, &attributes,
                           (char *const *)(uintptr_t)child->params->argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return why;
}

static enum kva_status start(struct child *child, struct kva_err *err)
{
    int out[2] = {-1, -1}, errors[2] = {-1, -1};
    char *variable = NULL;
    char **environment = make_environment(child->params->temporary, &variable);
    int why = environment ? 0 : ENOMEM;
    if (!why && (pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0))
        why = errno;
    if (!why)
        why = spawn(child, out[1], errors[1], environment);
    free(environment);
    free(variable);
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0 && (i == 1 || why))
            close(out[i]);
        if (errors[i] >= 0 && (i == 1 || why))
            close(errors[i]);
    }
    if (why == ENOENT)
        return kva_fail(err, KVA_ENOTFOUND, "there is no program '%s'", child->params->argv[0]);
    if (why)
        return kva_fail(err, KVA_EIO, "'%s' cannot be started: %s", child->params->argv[0],
                        strerror(why));
    child->out = out[0];
    child->errors = errors[0];
    return KVA_OK;
}

/* --- run ------------------------------------------------------------------------------------- */

/* The beginning is kept, and the newest half of what would not fit: the cause is in the one, the
 * end in the other. */
static void keep_errors(struct kva_buf *errors, const char *bytes, size_t count)
{
    if (errors->length + count > ERRORS_BYTES) {
        size_t half = errors->length / 2;
        memmove(errors->data + half / 2, errors->data + errors->length - half / 2, half / 2);
        errors->length = half / 2 * 2;
        errors->data[errors->length] = '\0';
    }
    kva_buf_append(errors, bytes, count);
}

/* What is there; false: the pipe is at its end. */
static bool read_some(struct child *child, int fd, struct kva_buf *errors)
{
    char chunk[65536];
    ssize_t count = read(fd, chunk, sizeof(chunk) / (errors ? 16 : 1));
    if (count < 0)
        return errno == EINTR || errno == EAGAIN;
    if (count == 0)
        return false;
    if (errors)
        keep_errors(errors, chunk, (size_t)count);
    else if (child->params->output &&
             !child->params->output(child->params->opaque, chunk, (size_t)count))
        child->stopped = true;
    return true;
}

static bool is_cancelled(const struct child *child)
{
    return child->params->cancelled && atomic_load(child->params->cancelled);
}

static void read_all(struct child *child, struct kva_buf *errors)
{
    while ((child->out >= 0 || child->errors >= 0) && !child->stopped && !is_cancelled(child)) {
        struct pollfd fds[2] = {{child->out, POLLIN, 0}, {child->errors, POLLIN, 0}};
        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR)
            break;
        if (child->params->tick)
            child->params->tick(child->params->opaque);
        if (fds[0].revents && !read_some(child, child->out, NULL)) {
            close(child->out);
            child->out = -1;
        }
        if (fds[1].revents && !read_some(child, child->errors, errors)) {
            close(child->errors);
            child->errors = -1;
        }
    }
}

/* Asked to end, then made to. */
static int reap(struct child *child, bool end)
{
    int state = 0;
    uint64_t waited_ms = 0;
    if (end)
        kill(-child->pid, SIGTERM);
    while (end && waited_ms < GRACE_MS && waitpid(child->pid, &state, WNOHANG) == 0) {
        poll(NULL, 0, 10);
        waited_ms += 10;
    }
    if (end)
        kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &state, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(state) && !end ? WEXITSTATUS(state) : -1;
}

enum kva_status kva_hub_child_run(const struct kva_hub_child_params *params,
                                  struct kva_hub_child_result *ret, struct kva_err *err)
{
    struct child child = {.params = params, .out = -1, .errors = -1};
    struct kva_buf errors;
    enum kva_status status = start(&child, err);
    if (status)
        return status;
    kva_buf_init(&errors, 2 * ERRORS_BYTES);
    read_all(&child, &errors);
    bool cancelled = is_cancelled(&child);
    int code = reap(&child, cancelled || child.stopped);
    if (child.out >= 0)
        close(child.out);
    if (child.errors >= 0)
        close(child.errors);
    if (cancelled) {
        kva_buf_finish(&errors);
        return kva_fail(err, KVA_ECANCELLED, "stopped");
    }
    ret->code = code;
    ret->errors = errors;
    return KVA_OK;
}

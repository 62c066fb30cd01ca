/* SPDX-License-Identifier: Apache-2.0 */
/* Writing results to stdout, or to a file. */
#include "bench/frame/output.h"
#include "base/shown.h"
#include "text.h"
#include "tools/expar/report/report.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

void bench_output_check(struct argp_state *state, const char *option, const char *file)
{
    char folder[PATH_MAX];
    struct stat found;
    if (!file) return;
    if (!*file || strlen(file) > PATH_MAX - 16) argp_error(state, "%s '%s': a file is expected", option, SHOWN(file));
    snprintf(folder, sizeof folder, "%s", file);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = '\0';
    if (access(slash ? folder : ".", W_OK | X_OK) != 0)
        argp_failure(state, EX_USAGE, 0, "%s %s: %s", option, SHOWN(file), strerror(errno));
    if (stat(file, &found) == 0 && S_ISDIR(found.st_mode))
        argp_failure(state, EX_USAGE, 0, "%s %s: it is a folder", option, SHOWN(file));
}

/* ---- a file in the place of stdout ------------------------------------------------------------------------------- */

struct redirection {
    char file[PATH_MAX];      /* where a link leads */
    char temporary[PATH_MAX]; /* in the same folder, so that it can replace the file; "": the file is a device */
    int kept;                 /* the former stdout */
};

static bool complain(const char *file)
{
    fprintf(stderr, "expar bench: cannot write %s: %s\n", SHOWN(file), strerror(errno));
    return false;
}

/* Returns the file's mode: that of a file which a program creates. */
static mode_t usual_mode(void)
{
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

/* Opens the file if it is a device or a pipe, which nothing may replace; else a new file beside it. */
static int open_target(struct redirection *self, const char *file)
{
    struct stat found;
    if (!realpath(file, self->file)) snprintf(self->file, sizeof self->file, "%s", file);
    if (stat(file, &found) == 0 && !S_ISREG(found.st_mode)) return open(file, O_WRONLY | O_CLOEXEC);
    if (snprintf(self->temporary, sizeof self->temporary, "%s.XXXXXX", self->file) >= PATH_MAX) return -1;
    const int fd = mkostemp(self->temporary, O_CLOEXEC);
    if (fd >= 0 && fchmod(fd, usual_mode()) != 0) fprintf(stderr, "expar bench: %s: %s\n", file, strerror(errno));
    return fd;
}

static bool redirect(struct redirection *self, const char *file)
{
    const int fd = open_target(self, file);
    if (fd < 0) return complain(self->file);
    fflush(stdout);
    self->kept = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    const bool good = self->kept >= 0 && dup2(fd, STDOUT_FILENO) >= 0;
    close(fd);
    if (good) return true;
    complain(self->file);
    if (self->kept >= 0) close(self->kept);
    if (*self->temporary) unlink(self->temporary);
    return false;
}

/* Gives stdout back, and puts the file in its place if all of it was written. */
static bool restore(const struct redirection *self, bool good)
{
    const bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (good && !written) complain(self->file);
    clearerr(stdout);
    dup2(self->kept, STDOUT_FILENO);
    close(self->kept);
    if (!*self->temporary) return good && written;
    if (good && written && (rename(self->temporary, self->file) == 0 || complain(self->file))) return true;
    unlink(self->temporary);
    return false;
}

/* Lets `print` write to a file; NULL: to stdout. */
static bool print_to(const char *file, bool (*print)(const void *what), const void *what)
{
    struct redirection redirection = {.kept = -1};
    if (!file) return print(what);
    return redirect(&redirection, file) && restore(&redirection, print(what));
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool print_json(const void *object)
{
    const bool good = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(8)) == 0;
    printf("\n");
    return good;
}

/* The runs of a report. */
struct runs {
    struct report_file files[REPORT_MOST_FILES];
    int count;
};

static bool print_report(const void *what)
{
    const struct runs *runs = what;
    if (report_write(runs->files, runs->count, stdout)) return true;
    fprintf(stderr, "expar bench: out of memory for the report\n");
    return false;
}

bool bench_output(const struct bench_options *options, const struct bench_printer *printer)
{
    const bool is_json = options->format == BENCH_JSON;
    json_t *object = is_json || options->report ? printer->object(printer->results) : NULL;
    if ((is_json || options->report) && !object) {
        fprintf(stderr, "expar bench: out of memory for the results\n");
        return false;
    }
    bool good = is_json ? print_to(options->output, print_json, object)
                        : print_to(options->output, printer->print, printer->results);
    const struct runs runs = {.files = {{.name = "this run", .json = object}}, .count = 1};
    if (options->report) good = print_to(options->report, print_report, &runs) && good;
    json_decref(object);
    return good;
}

_Static_assert(BENCH_MAX_FILES == REPORT_MOST_FILES, "all files that options take have a place in a report");

int bench_output_files(const struct bench_options *options)
{
    struct runs runs = {.count = 0};
    bool good = true;
    char error[512];
    while (good && runs.count < options->num_files) {
        good = report_read(options->files[runs.count], &runs.files[runs.count], error, sizeof error);
        runs.count += good;
    }
    if (!good) fprintf(stderr, "expar bench: %s\n", text_harmless(error));
    good = good && print_to(options->report, print_report, &runs);
    for (int i = 0; i < runs.count; i++)
        json_decref(runs.files[i].json);
    return good ? 0 : 1;
}

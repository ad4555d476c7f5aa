/* Sends events to the server after a pause in typing, dims outdated answers, copies text, reports a closed tab. */
(function () {
  /* Pause before typed text is sent; time after which an event without a reply is given up; time after which an input
     without effect counts as answered; pause before an early request; delay of the form behind the answer. */
  const TYPING_MS = 20, TIMEOUT_MS = 20000, UNCHANGED_MS = 1500, PAUSE_MS = 250, FORM_MS = 250;
  let typingTimer = null, events = 0, sentAt = 0, linkSent = false, current = null, upToDate = false, changedAt = 0, handledAt = 0;
  const none = () => window.dash_clientside.no_update;
  const answer = () => document.getElementById("answer");

  /* Events that wait while the server handles one. */
  const queue = [];
  /* Path → value that the server does not have yet; a form redrawn meanwhile may show an older one. */
  const typing = new Map();
  function push(event) {
    event.at = Date.now();
    if (!["go", "mend", "find", "file"].includes(event.kind) && answer()) answer().setAttribute("data-changing", "");
    const last = queue[queue.length - 1];
    if (last && last.kind === event.kind && event.kind === "field") Object.assign(last.values, event.values);
    else if (last && last.kind === event.kind && event.kind === "typed") last.value = event.value;
    else queue.push(event);
    next();
    redrawForm(FORM_MS);
  }
  function next() {
    if (!queue.length || Date.now() - sentAt < TIMEOUT_MS) return;
    sentAt = Date.now();
    typing.forEach((typed, path) => sentAt - typed.at > TIMEOUT_MS && typing.delete(path));
    current = Object.assign(queue.shift(), { n: ++events });
    window.dash_clientside.set_props("happened", { data: current });
    setTimeout(next, TIMEOUT_MS + 100);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    studio: {
      sendEvents: function (hash) {
        const sent = arguments[arguments.length - 1];
        if (!linkSent) {
          linkSent = true;
          push({ kind: "link", hash: hash || location.hash });
          return none();
        }
        const inputs = window.dash_clientside.callback_context.triggered;
        const fields = {};
        for (const input of inputs) {
          const at = input.prop_id.lastIndexOf("."), name = input.prop_id.slice(0, at);
          const id = name.startsWith("{") ? JSON.parse(name) : { type: name };
          if (id.type === "field") fields[id.path] = input.value;
          else if (sent && input.value === { link: sent.hash, file: sent.file }[id.type]) continue;
          else if (id.type === "link") push({ kind: "link", hash: input.value });
          else if (id.type === "slid") input.value && push(Object.assign({ kind: "slid" }, input.value));
          else if (input.value) push(Object.assign({}, id, { kind: id.type, value: input.value }));
        }
        /* Fields that are not in `typing` only report that the form was redrawn. */
        const edited = Object.keys(fields).filter((path) => typing.has(path));
        const values = Object.fromEntries(edited.map((path) => [path, typing.get(path).text]));
        edited.forEach((path) => typing.delete(path));
        if (edited.length) push({ kind: "field", values: values });
        return none();
      },
      eventHandled: function (result, newQuestion) {
        sentAt = 0;
        question = newQuestion;
        if (result && result.asks) upToDate = false;
        if (current && ["field", "typed"].includes(current.kind)) handledAt = Math.max(handledAt, current.at);
        next();
        settle();
        redrawForm(upToDate ? 0 : FORM_MS);
        return none();
      },
      markStale: function (newQuestion, answered) {
        upToDate = Boolean(newQuestion && answered && newQuestion.n === answered.n);
        question = newQuestion;
        settle();
        redrawForm(upToDate ? 0 : FORM_MS);
        wrongPath = (answered && answered.n === newQuestion.n && answered.path) || "";
        markWrong();
        markBasis();
        return upToDate && !answered.refused ? "answer" : "answer stale";
      },
      basisShown: function (shownFor) {
        basisOf = shownFor;
        markBasis();
        return none();
      },
      formDrawn: function () {
        drawingSince = 0;
        setTimeout(markWrong, 0);
        redrawForm(0);
        return none();
      },
    },
  });

  /* Path of the value that the answer refuses. Rows of a form that is drawn after the answer are marked then. */
  let wrongPath = "";
  function markWrong() {
    document.querySelectorAll(".row").forEach((row) => {
      const here = row.dataset.path;
      row.classList.toggle("wrong", Boolean(here && wrongPath && (wrongPath + "/").startsWith(here + "/")));
    });
  }
  /* The basis of an answer is shown a moment after the answer. */
  let basisOf = null;
  function markBasis() {
    document.getElementById("about").classList.toggle("stale", Boolean(question && basisOf !== question.n));
  }
  /* Redraws the form after the answer, or before it if the answer takes long; again if the question changed while it was
     drawn. */
  let drawingSince = 0, form = null, missed = false, formTimer = null;
  function redrawForm(wait) {
    clearTimeout(formTimer);
    if (!question) return;
    const underWay = Date.now() - drawingSince < TIMEOUT_MS;
    if (underWay) missed = missed || question.n !== form.n || question.form !== form.form;
    const needed = missed || !form || form.form !== question.form;
    document.getElementById("form").setAttribute("aria-busy", String(Boolean(needed || underWay || sentAt || queue.length)));
    if (needed && !underWay)
      formTimer = setTimeout(() => {
        drawingSince = Date.now();
        missed = false;
        form = question;
        window.dash_clientside.set_props("form-asked", { data: drawingSince });
      }, wait);
  }
  /* The answer includes all input once its event is handled and answered, or the input changed nothing. */
  function settle() {
    const over = handledAt >= changedAt || Date.now() - changedAt > UNCHANGED_MS;
    if (upToDate && over && !sentAt && !queue.length && answer()) answer().removeAttribute("data-changing");
  }
  function typed(text) {
    clearTimeout(typingTimer);
    if (!question || (text === question.text && !sentAt && !queue.length)) return;
    typingTimer = setTimeout(() => push({ kind: "typed", value: text }), TYPING_MS);
  }

  /* Asks the server to begin an answer early, before Dash has processed the input. */
  let question = null;
  function beginEarly(more) {
    if (!question || !upToDate || queue.length || Date.now() - changedAt < PAUSE_MS) return;
    const request = Object.assign({ text: question.text, file: question.file }, more);
    const headers = { "Content-Type": "application/json" };
    const tab = document.querySelector("[data-tab]").dataset.tab;
    fetch("/begin/" + tab, { method: "POST", headers: headers, body: JSON.stringify(request) }).catch(() => {});
  }
  document.addEventListener("input", (event) => {
    const from = event.target.closest && event.target.closest(".ask, .editor");
    if (!from || event.target.id === "find" || !answer()) return;
    if (event.target.id === "yaml") {
      beginEarly({ text: event.target.value });
      typed(event.target.value);
    } else if (event.target.id.includes('"field"'))
      beginEarly({ values: { [JSON.parse(event.target.id).path]: event.target.value } });
    changedAt = Date.now();
    if (event.target.id.includes('"field"')) {
      const { value, selectionStart } = event.target;
      typing.set(JSON.parse(event.target.id).path, { text: value, caret: selectionStart, at: changedAt });
    }
    answer().setAttribute("data-changing", "");
    setTimeout(settle, UNCHANGED_MS + 50);
  }, true);
  /* Text typed into a field with a list of entries replaces the entry. */
  let focusedId = "";
  document.addEventListener("pointerdown", () => (focusedId = ""));
  document.addEventListener("focusin", (event) => {
    focusedId = event.target.closest("#form") ? event.target.id : "";
    if (event.target.matches("input[list]")) event.target.select();
  });
  document.addEventListener("click", (event) => {
    const name = event.target.dataset && event.target.dataset.copy;
    if (!name) return;
    navigator.clipboard.writeText(document.getElementById(name).textContent).then(() => {
      event.target.textContent = "Copied";
      setTimeout(() => (event.target.textContent = "Copy"), 1500);
    });
  });
  window.addEventListener("pagehide", () => {
    const page = document.querySelector("[data-tab]");
    if (page) navigator.sendBeacon("/leave/" + page.dataset.tab);
  });
  /* Restores the focus and the typed text of a field after the form was redrawn. */
  function restoreFocus() {
    const field = focusedId && document.activeElement === document.body && document.getElementById(focusedId);
    if (!field) return;
    const typed = focusedId.includes('"field"') && typing.get(JSON.parse(focusedId).path);
    field.focus();
    if (typed && typed.text !== field.value) {
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, typed.text);
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (field.setSelectionRange) {
      const caret = typed ? typed.caret : field.value.length;
      field.setSelectionRange(caret, caret);
    }
  }
  /* After a change of the form's level by keyboard, its title gets the focus. */
  let title = "";
  new MutationObserver(() => {
    restoreFocus();
    markWrong();
    /* A slider of Dash has no name of its own. */
    document.querySelectorAll("[role=slider]:not([aria-labelledby])").forEach((slider) => {
      const owner = slider.closest("[id]");
      if (owner) slider.setAttribute("aria-labelledby", owner.id.replace(/-.*/, "") + "-name");
    });
    const now = document.getElementById("level-title");
    if (!now || now.textContent === title) return;
    const first = title === "";
    title = now.textContent;
    if (!first && (!document.activeElement || document.activeElement === document.body)) now.focus();
  }).observe(document.documentElement, { childList: true, subtree: true, characterData: true });
  document.documentElement.lang = "en";
})();

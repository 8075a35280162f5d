from tests.support.settings_page import PAGE, settings_page


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == settings_page(), "run `python -m tests.support.settings_page`"
